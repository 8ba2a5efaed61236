"""Reads a table that may have no MemWAL, and gives it one, through Lance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memwal.errors import MemWalError, Refused, Unsupported
from memwal.format.codec import encode_snapshot
from memwal.jobs.init.plan import FoundTable, find_inherited
from memwal.jobs.init.request import InitRequest, WriteSpec
from memwal.model import ShardId, ShardManifest, TableView
from memwal.rows.expire import EXPIRE_KEY, Expire
from memwal.rows.keyset import show_keys
from memwal.rows.policy import RowPolicy
from memwal.run.stores import Stores
from memwal.sharding.evaluate import check_hashed
from memwal.store.shards.inherited import put_adopted
from memwal.store.shards.listing import list_shards
from memwal.store.tables.datasets import find_all_double_keys
from memwal.store.tables.indexes import LET_GO_MESSAGE, replace_mem_wal_entry
from memwal.store.tables.lance_calls import call_lance
from memwal.store.tables.policy_rows import check_fits
from memwal.text import count_of, name_some

_PRIMARY_KEY = "lance-schema:unenforced-primary-key"
_JSON = "extension<arrow.json>"
_NAMED_MAX = 20


class StoredInitTable:
    """One table. Each commit is made on top of the version that was read last.

    `store_policy` stores a policy in the table. Commits raise LostRace when another commit was in
    the way, Unsupported for what Lance refuses, and StoreUnavailable for an error that leaves open
    whether the commit has landed.
    """

    def __init__(self, stores: Stores, store_policy: Callable[[RowPolicy], None]) -> None:
        self._stores = stores
        self._version = 0
        self.put_policy = store_policy

    def read(self, request: InitRequest) -> FoundTable:
        """Read the latest version, and what stands against the request."""
        view = self._stores.views.unready()
        self._version = view.version
        if view.has_mem_wal and request.adopt_clone:
            view = self._stores.views.table()
            self._version = view.version
            return find_inherited(view)
        if view.has_mem_wal:
            return FoundTable(view=view)
        against = (*self._find_unfit(view, request), *self._find_leftovers())
        return FoundTable(view=view, in_the_way=against)

    def set_primary_key(self, columns: Sequence[str]) -> None:
        """Commit the key, for good; positions tell the order of several columns."""
        marks = {column: {_PRIMARY_KEY: "true"} for column in columns}
        if len(columns) > 1:
            for place, column in enumerate(columns, start=1):
                marks[column][f"{_PRIMARY_KEY}:position"] = str(place)
        call_lance(lambda: self._base().update_field_metadata(marks))

    def put_expire(self, expire: Expire) -> None:
        """Commit when rows expire, over what the version read last says."""
        call_lance(lambda: self._base().update_config({EXPIRE_KEY: expire.as_text()}))

    def initialize(self, request: InitRequest) -> None:
        """Commit an empty MemWAL index."""
        spec = request.spec or WriteSpec()
        kinds: dict[str, dict[str, Any]] = {
            "unsharded": {"unsharded": True},
            "bucket": {"bucket_column": spec.column, "num_buckets": spec.num_buckets},
            "identity": {"identity_column": spec.column},
            "manual": {},
        }
        kept = None if request.maintained is None else list(request.maintained)
        base = self._base()
        call_lance(lambda: base.initialize_mem_wal(maintained_indexes=kept, **kinds[spec.kind]))

    def name_adopted(self, ranges: Mapping[ShardId, range]) -> None:
        """Record beside the table the progress that is about to be let go of, by shard."""
        put_adopted(self._stores.objects, self._stores.clock.new_id(), ranges)

    def let_go(
        self, inherited: Mapping[ShardId, range], merged: Mapping[ShardId, int]
    ) -> Sequence[Mapping[ShardId, int]]:
        """Replace the MemWAL index entry, the only way to make Lance let go of progress.

        The new entry is that of the version read last, without progress for the shards of
        `inherited`, and with the progress in `merged` raised. Returns the progress in each version
        that came in between, which the commit overwrote. The next commit is made on top of this
        one.
        """
        read = self._version
        state = self._stores.views.mem_wal(read)
        details = encode_snapshot(
            state,
            taken_at_millis=0,  # no snapshot: the old one may be of other shards
            num_shards=0,
            inline=None,
            merged=merged,
            left_out=inherited,
        )
        self._version = replace_mem_wal_entry(
            self._stores.tables,
            version=read,
            index_uuid=self._stores.clock.new_id(),
            # Kept: it proves that what the shards list belongs to this index.
            created_at_millis=state.created_at_millis or 0,
            details=details,
            message=LET_GO_MESSAGE,
        )
        return [self._stores.views.mem_wal(v).merged for v in range(read + 1, self._version)]

    def _base(self) -> Any:
        return self._stores.tables.at(self._version)

    def _find_unfit(self, view: TableView, request: InitRequest) -> Iterator[MemWalError]:
        schema = self._stores.tables.seen(view.version).schema
        for field in schema:
            if _JSON in str(field.type):
                text = f"column {field.name!r} is JSON, and pylance's writer takes no JSON"
                yield Unsupported("MW-T07", text)
        spec = request.spec
        if spec is not None and spec.kind == "bucket" and spec.column in schema.names:
            try:
                check_hashed(schema.field(spec.column).type)
            except Unsupported as error:
                yield error
        key = request.key_of(view)
        if not {*key} <= {*schema.names} or not key:
            return
        if request.check_keys or _has_index(view, key):
            yield from self._find_doubles(view, key)
        if request.row_policy is None:
            return
        try:
            check_fits(request.row_policy, replace(view, primary_key=key), schema)
        except MemWalError as error:
            yield error

    def _find_doubles(self, view: TableView, key: Sequence[str]) -> Iterator[MemWalError]:
        base = self._stores.tables.seen(view.version)
        found, rows = call_lance(lambda: find_all_double_keys(base, key))
        if found is None:
            yield Refused("MW-T13", f"{rows:,} rows are too many to compare their keys")
        elif len(found):
            named = "; ".join(name_some(show_keys(found), _NAMED_MAX, "of them"))
            count = count_of(len(found), "key")
            yield Refused("MW-T13", f"{count} more than once in the table: {named}")

    def _find_leftovers(self) -> Iterator[MemWalError]:
        """Refuse shards that list generations, or whose WAL a new writer would replay."""
        left = []
        for shard_id in list_shards(self._stores.objects, folders_only=True).shards:
            manifest = self._stores.shard_manifests.latest(shard_id) or ShardManifest(
                shard_id=shard_id, version=0, writer_epoch=0, current_generation=0
            )
            if listed := len(manifest.flushed_generations):
                left.append(f"{shard_id} lists {count_of(listed, 'generation')}")
            elif self._stores.wal.find_unflushed(manifest) is not None:
                left.append(f"{shard_id} has rows in its WAL")
        if left:
            shown = "; ".join(name_some(left, _NAMED_MAX, "shards"))
            yield Refused(
                "MW-T09",
                f"a former MemWAL left rows behind, which a new one would bring back: {shown}. "
                "Restore the version that had it and merge them, or delete the table's _mem_wal "
                "folder",
            )


def _has_index(view: TableView, key: Sequence[str]) -> bool:
    """Whether the key is one column that has an index."""
    ids = tuple(c.field_id for c in view.columns if c.name in key)
    return len(key) == 1 and ids in {entry.field_ids for entry in view.manifest.indexes}
