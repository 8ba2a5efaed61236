"""Chooses the shard of each row, by the table's shard spec. Pure.

pylance leaves it to the caller which shard takes a row: it does not tie shards to values, and its
manifests record none. Here a shard's id is derived from the spec and the values, so that any two
writers agree without asking each other. For the specs that LanceDB's clients route by, it is the id
that they derive; for others it is our own. The values are stored in the shard's first manifest, and
the merging read prunes by them. An existing shard whose manifest has the same values is used
instead of a new one, whatever its id: there are shards with our own ids for every kind of spec.

A key must stay in one shard, since rows of a key in two shards have no order. So values are refused
when two shards have unmerged rows of them. Whether a shard has any shows in its WAL, not in its
manifest; `find_waiting` in `target.py` checks that.

A table without a shard spec, whose shards are managed by hand, is written to one shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid5

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Refused, Unsupported, Usage
from memwal.ingest.values.operations import encode_columns
from memwal.model import ShardId, ShardManifest, ShardSpec, ShardStatus
from memwal.rows.keyset import find_shared_key
from memwal.sharding.evaluate import check_spec, compute_values
from memwal.sharding.spec import Sources, Spec, Transform, encode_value, find_source, read_spec

# Must never change: ids that were derived from it are in use.
_NAMESPACE = UUID("5ac3f0a2-7d0a-4f5e-9a3c-6d656d77616c")
# LanceDB's, whose clients write to the shards of these ids (lancedb/lancedb,
# rust/lancedb/src/table/merge/lsm.rs).
_LANCEDB_NAMESPACE = UUID("4c534d57-5249-5445-5f53-484152443031")
MANUAL_SPEC_ID = 0
# With more buckets, only the first ids are listed.
_BUCKETS_LISTED_MAX = 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardValues:
    """The values that all rows of a shard share. A field that is NULL has no entry."""

    spec_id: int = MANUAL_SPEC_ID
    entries: tuple[tuple[str, bytes], ...] = ()

    @property
    def own_id(self) -> ShardId:
        """The id that memwal derives from the values when LanceDB derives none."""
        values = "".join(f"/{name}={data.hex()}" for name, data in sorted(self.entries))
        return ShardId(str(uuid5(_NAMESPACE, f"{self.spec_id}{values}")))


def derive_id(spec: Spec | None, values: ShardValues) -> ShardId:
    """The id of a new shard for the values: the one LanceDB's clients derive, else our own."""
    if spec is None or len(spec.fields) != 1:
        return values.own_id
    shard_field = spec.fields[0]
    value = dict(values.entries).get(shard_field.field_id)
    match shard_field.transform:
        case Transform.UNSHARDED:
            name = b"unsharded"
        case Transform.BUCKET if value is not None:
            name = b"bucket-%d" % int.from_bytes(value, "little")
        case Transform.IDENTITY if value is not None:
            name = b"identity-" + value
        case _:
            return values.own_id
    # uuid5 of bytes, which Python's own supports only from 3.12 on.
    digest = hashlib.sha1(_LANCEDB_NAMESPACE.bytes + name, usedforsecurity=False).digest()
    return ShardId(str(UUID(bytes=digest[:16], version=5)))


def list_ids(spec: Spec | None) -> frozenset[ShardId]:
    """The ids, LanceDB's and ours, that a spec with few values can lead to; for others, some."""
    spec_id = MANUAL_SPEC_ID if spec is None else spec.spec_id
    every = [ShardValues(spec_id=spec_id)]
    if spec is not None and len(spec.fields) == 1:
        shard_field = spec.fields[0]
        buckets = {Transform.UNSHARDED: 1, Transform.BUCKET: shard_field.num_buckets}
        for bucket in range(min(buckets.get(shard_field.transform, 0), _BUCKETS_LISTED_MAX)):
            entry = (shard_field.field_id, bucket.to_bytes(4, "little"))
            every.append(ShardValues(spec_id=spec_id, entries=(entry,)))
    return frozenset(made for values in every for made in (values.own_id, derive_id(spec, values)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A shard that takes rows, and the values in its manifest (or to be stored there if new)."""

    shard_id: ShardId
    values: ShardValues


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Routed:
    """The rows of one batch that go to one shard, as ascending row numbers in the batch."""

    place: Place
    indices: pa.Array

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, batch: pa.RecordBatch) -> pa.Table:
        """These rows of the batch that was routed."""
        rows = pa.Table.from_batches([batch])
        return rows if len(self) == len(rows) else rows.take(self.indices)


def choose_spec(specs: Sequence[ShardSpec]) -> Spec | None:
    """The spec that new rows are routed by; None for a table without one.

    Raises Unsupported for several specs, since pylance then opens no writer.
    """
    if len(specs) > 1:
        raise Unsupported(
            "MW-I15",
            f"the table has {len(specs)} shard specs, and pylance writes to no table with more "
            "than one",
        )
    return read_spec(specs[0]) if specs else None


@dataclass(kw_only=True)
class Router:
    """Routes rows by one spec, or all of them to the `fixed` place.

    `key` is the table's primary key; with one, the order of a key's rows matters. `waiting` are the
    contested shards (`find_contested`) with unmerged rows; `written` are shards that the same
    ingest wrote to before and must go on with. What `broken` shards hold is unknown. `places`
    caches the place of each set of values.
    """

    spec: Spec | None
    sources: Sources
    manifests: Sequence[ShardManifest] = ()
    key: Sequence[str] = ()
    waiting: Collection[ShardId] = ()
    broken: Collection[str] = ()
    written: Collection[ShardId] = ()
    fixed: Place | None = None
    places: dict[ShardValues, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a spec that rows can't be routed by before anything is written."""
        if self.spec is not None and self.fixed is None:
            check_spec(self.spec, self.sources)

    @property
    def columns(self) -> Sequence[str]:
        """The top-level columns that a row's shard depends on."""
        if self.spec is None or self.fixed is not None:
            return ()
        found = (find_source(field, self.sources) for field in self.spec.fields)
        return sorted({source.path[0] for source in found if source is not None})

    def route(self, rows: pa.RecordBatch, deleted: pa.Array | None = None) -> list[Routed]:
        """Assign each row to a shard; the shards come in the order of their first rows.

        Raises Usage, Unsupported or Refused when a row's values can't be computed, and Refused for
        a SEALED shard, for values with unmerged rows in another shard too, and for a key that comes
        with the values of two shards. Usage, too, for a `deleted` row without a value that its key
        must have for that.
        """
        if rows.num_rows == 0:
            return []
        if deleted is not None:
            self._check_deleted(rows, deleted)
        if self.spec is None or self.fixed is not None:
            place = self.fixed or self._choose_place(ShardValues(spec_id=MANUAL_SPEC_ID))
            return [Routed(place=place, indices=pa.array(np.arange(rows.num_rows)))]
        values = compute_values(rows, self.spec, self.sources)
        codes = encode_columns(values.columns)
        counts = np.bincount(codes)
        # numpy sorts 16-bit integers faster, by counting.
        order = np.argsort(codes.astype(np.uint16) if len(counts) < 2**16 else codes, kind="stable")
        routed = [
            Routed(
                place=self._choose_place(self._encode_values(values, int(indices[0]))),
                indices=pa.array(indices),
            )
            for indices in np.split(order, np.cumsum(counts)[:-1])
        ]
        moves = not {*self.columns} <= {*self.key} and {*self.key} <= {*rows.schema.names}
        if moves and len(routed) > 1:
            self._check_keys_stay(rows, routed)
        return routed

    def _check_deleted(self, rows: pa.RecordBatch, deleted: pa.Array) -> None:
        """Raise Usage for a deleted row that lacks a value by which its key went to a shard."""
        for name in sorted({*self.columns} - {*self.key}):
            if pc.any(pc.and_(deleted, rows[name].is_null())).as_py():
                raise Usage(
                    f"a row that deletes has no {name!r}, by which rows go to shards: its key "
                    "would be deleted in another shard than the one that has it. Give such rows "
                    f"the {name!r} that their key has"
                )

    def _check_keys_stay(self, rows: pa.RecordBatch, routed: Sequence[Routed]) -> None:
        keys = pa.table(rows.select(self.key))
        held = {r.place.shard_id: [keys.take(r.indices)] for r in routed}
        if found := find_shared_key(held, self.key):
            raise Refused(
                "MW-I41",
                f"in these rows, key {found.key} has two values of {', '.join(self.columns)}, by "
                f"which rows go to shards {' and '.join(found.shards)}: nothing would say which of "
                "its rows is newer. A key has to keep that value, also from batch to batch, where "
                "nothing checks it; else the table needs a spec on its primary key (`memwal "
                "quiesce`, then `memwal init --spec`)",
            )

    def _encode_values(self, values: pa.RecordBatch, row: int) -> ShardValues:
        spec_id = MANUAL_SPEC_ID if self.spec is None else self.spec.spec_id
        encoded = ((name, encode_value(values[name][row])) for name in values.schema.names)
        entries = tuple((name, data) for name, data in encoded if data is not None)
        return ShardValues(spec_id=spec_id, entries=entries)

    def _choose_place(self, values: ShardValues) -> Place:
        if values not in self.places:
            self.places[values] = self._find_place(values)
        return self.places[values]

    def find_contested(self, places: Iterable[Place] = ()) -> set[ShardId]:
        """The shards whose values another shard holds too, or gets as one of `places`.

        Empty for a table without a primary key, where order does not matter.
        """
        spec_id = MANUAL_SPEC_ID if self.spec is None else self.spec.spec_id
        by_derived: dict[ShardId, set[ShardId]] = {}
        for manifest in self.manifests if self.key else ():
            said, derived = _read_values(manifest), manifest.shard_id
            if said.entries and said.spec_id == spec_id:
                derived = derive_id(self.spec, said)
            by_derived.setdefault(derived, set()).add(manifest.shard_id)
        for place in places if self.key else ():
            derived = derive_id(self.spec, place.values)
            by_derived.setdefault(derived, set()).add(place.shard_id)
        return {shard for held in by_derived.values() if len(held) > 1 for shard in held}

    def derive_ids(self, rows: pa.RecordBatch) -> set[ShardId]:
        """The ids that new shards for these rows would get. Raises as `route` does."""
        if self.spec is None:
            return {derive_id(None, ShardValues(spec_id=MANUAL_SPEC_ID))}
        values = compute_values(rows, self.spec, self.sources)
        return {derive_id(self.spec, self._encode_values(values, n)) for n in range(len(values))}

    def _find_place(self, values: ShardValues) -> Place:
        derived = derive_id(self.spec, values)
        self._check_readable(values, derived)
        holding = self._find_holding(values, derived)
        waiting = [s for s in holding if s in self.waiting]
        going_on = [s for s in holding if s in self.written]
        if len(going_on or waiting) == 1:
            [chosen] = going_on or waiting
        else:
            chosen = derived if derived in holding or not holding else min(holding)
        if len(holding) > 1 and chosen not in (*waiting, *going_on, derived):
            raise Refused(
                "MW-I17",
                f"shards {', '.join(sorted(holding))} all say that they hold {values.entries}; "
                "name the one to write to with --shard",
            )
        place = Place(shard_id=chosen, values=values)
        self.check_place(place)
        return place

    def _find_holding(self, values: ShardValues, derived: ShardId) -> dict[ShardId, ShardManifest]:
        """The existing shards for these values, by their ids or the values in their manifests."""
        found = {}
        values = replace(values, entries=tuple(sorted(values.entries)))
        for manifest in self.manifests:
            said = _read_values(manifest)
            if values.entries and said == values:
                found[manifest.shard_id] = manifest
            elif manifest.shard_id == derived:
                if said.entries:
                    raise Refused(
                        "MW-I18",
                        f"shard {derived} says that it holds {said.entries} of spec "
                        f"{said.spec_id}, but its id is that of {values.entries}; find out which "
                        "writer made it, or name a shard with --shard",
                    )
                found[derived] = manifest
        return found

    def _check_readable(self, values: ShardValues, derived: ShardId) -> None:
        """Raise Refused when a shard that can't be read has the id of these values."""
        unreadable = {derived, values.own_id}.intersection(self.broken)
        if unreadable and self.key:
            raise Refused(
                "MW-I16",
                f"shard {unreadable.pop()} can't be read, and by its id it is that of "
                f"{values.entries or 'all rows'}: what waits there may be newer than what is "
                "written; mend it (`memwal verify`), or name the shard with --shard",
            )

    def check_place(self, place: Place) -> None:
        """Raise Refused for a SEALED shard, and when another has or may have rows of its values.

        Only unmerged rows count, since those of two shards have no order.
        """
        derived = derive_id(self.spec, place.values)
        self._check_readable(place.values, derived)
        holding = self._find_holding(place.values, derived)
        manifest = holding.pop(place.shard_id, None)
        if manifest is not None and manifest.status is ShardStatus.SEALED:
            raise Refused("MW-M05", f"shard {place.shard_id} is SEALED: it takes no more rows")
        others = sorted(s for s in holding if s in self.waiting)
        if others:
            raise Refused(
                "MW-I19",
                f"rows that go to shard {place.shard_id} wait in shard {', '.join(others)} too, "
                "and nothing says which row of a key is newer: `memwal merge` first (`memwal "
                "rescue` for rows that are in a WAL only), or name the shard with --shard",
            )


def _read_values(manifest: ShardManifest) -> ShardValues:
    """The values that a shard's manifest claims for its rows."""
    return ShardValues(
        spec_id=manifest.shard_spec_id, entries=tuple(sorted(manifest.shard_field_entries))
    )
