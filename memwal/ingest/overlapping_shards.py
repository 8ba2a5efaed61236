"""Finds shards whose rows may have values that other shards hold.

Rows of one key in two shards have no order. Shards made by LanceDB or pylance don't record which
values they hold. So while such a shard has rows that are not in the base table, its values have to
be found out: from its id, when the spec has few values; else from one of its rows, if the shard's
id was derived from that row's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa

from memwal.errors import MemWalError, Refused
from memwal.ingest.routing import MANUAL_SPEC_ID, Place, Router, list_ids
from memwal.model import ShardId, ShardView, TableView
from memwal.run.stores import Stores
from memwal.store.shards.wal import WalEntries
from memwal.store.tables.generations import Generations, as_base_rows
from memwal.text import count_of
from memwal.threads import side_by_side

_READERS_MAX = 16
_SAMPLE_ROWS = 64
_NAMED_MAX = 3


def check_strangers(router: Router, view: TableView, schema: pa.Schema, stores: Stores) -> None:
    """Raise Refused while unmerged rows of some shard may have any value.

    Only a table with a primary key is checked: without one, the order of rows does not matter.
    """
    if not router.key:
        return
    known = list_ids(router.spec)
    spec_id = MANUAL_SPEC_ID if router.spec is None else router.spec.spec_id
    unlabelled = [
        shard
        for shard in view.shards
        if shard.shard_id not in known
        and not (shard.manifest.shard_field_entries and shard.manifest.shard_spec_id == spec_id)
    ]

    def is_stranger(shard: ShardView) -> bool:
        return _waits(stores.wal, shard) and not _is_proven(router, view, schema, stores, shard)

    asked = side_by_side(is_stranger, unlabelled, _READERS_MAX)
    found = [str(b.shard_id) for b in view.broken if b.shard_id not in known]
    found += [shard.shard_id for shard, stranger in zip(unlabelled, asked, strict=True) if stranger]
    if found:
        shards = count_of(len(found), "shard")
        raise Refused(
            "MW-I20",
            f"{view.uri}: rows that are not merged are in {shards}, and nothing "
            f"tells for which values they are ({', '.join(found[:_NAMED_MAX])}"
            f"{', …' * (len(found) > _NAMED_MAX)}): of a key that is in one of them and in the "
            "source, nobody would know which row is newer. `memwal merge` first (`memwal rescue` "
            "for rows that are in a WAL only), or name the shard with --shard",
        )


def find_waiting(
    router: Router, view: TableView, wal: WalEntries, places: Iterable[Place] = ()
) -> frozenset[ShardId]:
    """The contested shards that have rows beyond the base table, for `Router.waiting`.

    A manifest doesn't show what a live writer has put since it claimed the shard, so the WALs of
    these shards are listed. `places` are further shards to which rows go.
    """
    contested = router.find_contested(places)
    asked = [shard for shard in view.shards if shard.shard_id in contested]
    waits = side_by_side(lambda shard: _waits(wal, shard), asked, _READERS_MAX)
    return frozenset(s.shard_id for s, waiting in zip(asked, waits, strict=True) if waiting)


def _waits(wal: WalEntries, shard: ShardView) -> bool:
    """Whether the shard may have rows beyond the base table, in generations or in its WAL."""
    return bool(shard.pending) or wal.find_unflushed(shard.manifest) is not None


def _is_proven(
    router: Router, view: TableView, schema: pa.Schema, stores: Stores, shard: ShardView
) -> bool:
    """Whether the shard's id is derived from the value of one of its rows.

    Such an id is derived from one value only, so the shard holds all rows of it and no others.
    """
    columns = pa.schema([schema.field(name) for name in router.columns])
    if not len(columns):
        return False
    with suppress(MemWalError, OSError, ValueError, KeyError):
        for batch in _read_sample(view, columns, stores, shard):
            if shard.shard_id in router.derive_ids(batch):
                return True
    return False


def _read_sample(
    view: TableView, columns: pa.Schema, stores: Stores, shard: ShardView
) -> Iterator[pa.RecordBatch]:
    """Some rows of the shard that are not in the base table."""
    if shard.pending:
        generations = Generations(
            objects=stores.objects, tables=stores.tables, renamed=stores.views.renamed
        )
        source = generations.open(view, shard.shard_id, shard.pending[0])
        names = source.alignment.sources_of(columns.names)
        for batch in source.dataset.scanner(columns=names, limit=_SAMPLE_ROWS).to_batches():
            yield as_base_rows(source.alignment, batch, columns)
    elif (position := stores.wal.find_unflushed(shard.manifest)) is not None:
        for batch in stores.wal.rows(shard.shard_id, position).batches:
            rows = batch.slice(0, _SAMPLE_ROWS).select(columns.names)
            yield pa.RecordBatch.from_arrays(rows.columns, schema=columns)
