"""Reads a table's state in the safe order.

The base table at its latest version V, then MemWAL details out of V's own manifest, then each
shard's latest manifest. Later reads can only see more: a shard manifest that is newer than V lists
generations that V has not merged, or has dropped generations that were merged at or before V. So
what is pending or deletable can only be under-stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

from memwal.errors import Corruption, MemWalError, Missing, NotATable, StoreUnavailable
from memwal.format import layout
from memwal.format.codec import decode_version_hint
from memwal.model import (
    NO_MEM_WAL,
    BrokenShard,
    Checkpoint,
    FlushedGeneration,
    MemWalState,
    ShardFiles,
    ShardId,
    ShardManifest,
    ShardView,
    StoredFile,
    TableView,
    VersionManifest,
)
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.rows.policy import STORED_KEY
from memwal.rows.progress import find_holes
from memwal.store.objects.base import count_readers
from memwal.store.records.former_merges import SettledRecords, TableHistory, list_named
from memwal.store.shards.inherited import InheritedProgress
from memwal.store.shards.listing import (
    ShardListing,
    list_shards,
    manifest_versions,
    newest_manifest,
    wal_entries,
)
from memwal.store.shards.manifests import (
    MEMORIES,
    SHARDS_MIN,
    ManifestFile,
    ShardManifests,
    find_cache_folder,
)
from memwal.store.shards.snapshots import ShardSnapshots
from memwal.store.tables.datasets import (
    LanceTables,
    columns_of,
    file_bytes_of,
    is_legacy,
    primary_key_of,
)
from memwal.store.tables.field_ids import FieldIds
from memwal.store.tables.generations import StoredLineage
from memwal.store.tables.manifests import check_restored, check_table_folder, require_mem_wal
from memwal.threads import side_by_side

# How many generations of unknown size are opened for one view.
_READERS_MAX = 16
_SIZES_MAX = 1000
# A hole's cause is for people: it is looked up in so many shards, for so many holes of each.
_HOLED_SHARDS_MAX = 20
_HOLES_MAX = 8


@dataclass(frozen=True, slots=True)
class ViewDetails:
    """Reads the details of one table's views. Sizes are remembered."""

    _tables: LanceTables
    _manifests: ShardManifests
    _lineage: StoredLineage
    _sizes: dict[str, FlushedGeneration | None] = field(init=False, default_factory=dict)

    def add_sizes(self, view: TableView) -> TableView:
        """Add the sizes of pending generations whose writers recorded none, oldest first."""
        unsized = [
            (shard.shard_id, g)
            for shard in view.shards
            for g in shard.pending
            if None in (g.in_memory_bytes, g.physical_rows)
        ]
        if not unsized:
            return view
        new = [(shard, g) for shard, g in unsized if g.path not in self._sizes][:_SIZES_MAX]
        found = side_by_side(lambda pair: self._tables.generation_size(*pair), new, _READERS_MAX)
        self._sizes.update((g.path, size) for (_, g), size in zip(new, found, strict=True))
        by_shard: dict[ShardId, dict[int, FlushedGeneration]] = {}
        for shard_id, g in unsized:
            size = self._sizes.get(g.path)
            if size is not None:
                by_shard.setdefault(shard_id, {})[g.generation] = size
        shards = (replace(s, sized=by_shard.get(s.shard_id, {})) for s in view.shards)
        return replace(view, shards=tuple(shards))

    def add_ages(self, view: TableView) -> TableView:
        """Add the time at which each shard's oldest pending generation was flushed."""
        waiting = [shard for shard in view.shards if shard.pending]
        aged = side_by_side(self._add_age, waiting, _READERS_MAX)
        return _replace_shards(view, aged)

    def add_causes(self, view: TableView) -> TableView:
        """Add what earlier manifests say about missing generations."""
        holed = [s for s in view.shards if any(find_holes(s))][:_HOLED_SHARDS_MAX]
        found = side_by_side(self._add_cause, holed, _READERS_MAX)
        return _replace_shards(view, found)

    def _add_age(self, shard: ShardView) -> ShardView:
        try:
            at = self._lineage.flushed_at_nanos(shard.shard_id, shard.pending[0])
        except MemWalError:
            at = None  # an age is for people and triggers; what is wrong shows when it is merged
        return replace(shard, oldest_pending_flushed_at_nanos=at)

    def _add_cause(self, shard: ShardView) -> ShardView:
        holes = islice(find_holes(shard), _HOLES_MAX)
        ends = {number for hole in holes for number in (hole.first, hole.last)}
        listed = {number: self._manifests.was_listed(shard.manifest, number) for number in ends}
        return replace(
            shard, listed_before={n: was for n, was in listed.items() if was is not None}
        )


def _replace_shards(view: TableView, shards: Sequence[ShardView]) -> TableView:
    """The view with these shards in place of those that have the same ids."""
    by_id = {shard.shard_id: shard for shard in shards}
    return replace(view, shards=tuple(by_id.get(s.shard_id, s) for s in view.shards))


T = TypeVar("T")
R = TypeVar("R")

Found = ShardManifest | BrokenShard | None
Listed = Mapping[ShardId, ShardFiles]

_LATEST_ATTEMPTS_MAX = 3
_LOOKS_MAX = 3
# If a page of a listing covers fewer shards, probing for each shard's manifest is faster.
_SHARDS_A_PAGE_MIN = 30
# Once so many of a table's manifests are new, they are stored for later processes.
_UNSAVED_SHARE_MAX = 0.05


class StoredViews(StoredLineage):
    """The Views port over an object store and Lance."""

    def __init__(
        self,
        objects: Objects,
        tables: LanceTables,
        *,
        remembered_min: int = SHARDS_MIN,
    ) -> None:
        """`remembered_min`: of so many shards the manifests are remembered on disk, too."""
        super().__init__(objects, tables)
        self._shards = ShardManifests(objects)
        self._snapshots = ShardSnapshots(objects)
        history = TableHistory(objects, tables, self._manifests, self._shards)
        self._settled = SettledRecords(objects, self._shards, _READERS_MAX, history)
        self._inherited = InheritedProgress(objects, tables, self._manifests)
        self._details = ViewDetails(tables, self._shards, self)
        self.field_ids = FieldIds(tables, self._manifests, self._shards)
        self._memory = MEMORIES.recall(objects.store, objects.uri)
        self._remembered_min = remembered_min
        self._last: tuple[Any, VersionManifest] | None = None
        self._probed: Mapping[ShardId, ShardManifest] = {}
        self._is_there = False

    def table(
        self,
        *,
        pending_sizes: bool = False,
        probed: bool = False,
    ) -> TableView:
        """The table with all its shards (see the port).

        Where a few requests list all files of the shards, each manifest is one request, or none if
        it is remembered. `pending_sizes` finds out the sizes of pending generations that their
        writers left out. `probed` looks for each shard's newest manifest itself, instead of
        trusting a listing.
        """
        self._check_there()

        def look() -> TableView:
            view = self._base_view()
            listing = list_shards(self._objects, folders_only=probed, pages_max=_count_pages_max)
            return self._add_listed(view, listing)

        view = self._settle(look)
        return self._details.add_sizes(view) if pending_sizes else view

    def table_and_wal(self, *, reached: bool = False) -> tuple[TableView, Listed]:
        """The table with ages and sizes, and what its shards store, from the same reads.

        `reached`: the store answered a moment ago, so whether it does is not checked first.
        """
        listed: dict[ShardId, ShardFiles] = {}

        def look() -> TableView:
            view = self._view_reached() if reached else self._check_and_view()
            listing = list_shards(self._objects, pages_max=_count_pages_max)
            with self._remembering(listing):
                looks = self._each(lambda shard: self._look(shard, listing), listing.shards)
            listed.update(zip(listing.shards, (files for _, files in looks), strict=True))
            found = self._find_bare(view, listing.shards, [found for found, _ in looks])
            return self._add_shards(view, found, listing.strangers)

        view = self._details.add_ages(self._details.add_sizes(self._settle(look)))
        settled = [shard for shard in view.shards if shard.settled_generation]
        for shard, sizes in zip(settled, self._each(self._list_former, settled), strict=True):
            listed[shard.shard_id] = replace(listed[shard.shard_id], former=sizes)
        return view, listed

    def _list_former(self, shard: ShardView) -> dict[str, int]:
        """The folders of what is settled of a shard, and how many bytes are in each."""
        sizes: dict[str, int] = {}
        below = f"{layout.shard_folder(shard.shard_id)}/"
        for file in self._objects.list(below):
            name = file.path.removeprefix(below).partition("/")[0]
            number = layout.parse_generation_folder(name)
            if number is not None and 0 < number <= shard.settled_generation:
                sizes[name] = sizes.get(name, 0) + file.size_bytes
        return sizes

    @contextmanager
    def _remembering(self, listing: ShardListing) -> Iterator[None]:
        """For many shards, load what earlier processes read, and save it for later ones."""
        many = listing.is_whole and len(listing.shards) >= self._remembered_min
        if many and not len(self._memory):
            self._on_disk.load(self._memory)
        yield
        if many:
            self._memory.forget_others(set(listing.shards))
            if self._memory.unsaved > len(listing.shards) * _UNSAVED_SHARE_MAX:
                self._on_disk.save(self._memory)

    @cached_property
    def _on_disk(self) -> ManifestFile:
        objects = self._objects
        return ManifestFile(find_cache_folder(), store=objects.store, uri=objects.uri)

    def _settle(self, look: Callable[[], TableView]) -> TableView:
        """A view of the latest version, without holes that come from the timing of its reads.

        A generation that is merged, and dropped from the list, between the read of the base and
        that of its shard looks like a hole. So progress is read again, but only if there is one.
        """
        for _ in range(_LOOKS_MAX):
            view = look()
            holed = {s.shard_id: s.merged_generation for s in view.shards if any(find_holes(s))}
            if not holed:
                break
            now = self._mem_wal_of(self._open(None)[1]).merged
            if all(now.get(shard, 0) == merged for shard, merged in holed.items()):
                return self._details.add_causes(view)
        return view

    def _look(self, shard_id: ShardId, listing: ShardListing) -> tuple[Found, ShardFiles]:
        if self._objects.page_objects == 0:
            # Each folder costs a request, so only these two are listed.
            folders = (layout.wal_folder(shard_id), layout.manifest_folder(shard_id))
            files = [file for folder in folders for file in self._objects.list(folder)]
        else:
            files = list(listing.files(shard_id))
        found = self._try_shard(shard_id, files)
        manifests = len(manifest_versions(shard_id, files))
        return found, ShardFiles(wal=wal_entries(shard_id, files), manifests=manifests)

    def read_shards(self, shard_ids: Sequence[ShardId]) -> Sequence[Found]:
        """The latest manifest of each shard, read in threads; None for one without any."""
        return self._each(self._try_shard, shard_ids)

    def at(self, version: int | None) -> TableView:
        """The table at a version (None: the latest), with every shard as it is now.

        A row-merge policy that was stored after the version counts as well: what is pending at the
        version are the same rows.
        """
        self._check_there()
        return self._at(version) if version is not None else self._settle(lambda: self._at(None))

    def _at(self, version: int | None) -> TableView:
        view = self._base_view(version)
        if version is not None and view.policy_text is None:
            view = replace(view, policy_text=self._tables.base().config().get(STORED_KEY))
        listing = list_shards(self._objects, folders_only=True)
        if len(listing.shards) >= _SHARDS_A_PAGE_MIN and self._objects.page_objects:
            listing = list_shards(self._objects, pages_max=_count_pages_max)
        return self._add_listed(view, listing)

    def from_snapshot(
        self, otherwise: Callable[[], TableView], *, sizes: bool = False
    ) -> TableView:
        """The latest version, with its shards out of the shard snapshot: few requests for any.

        They are as they were at `taken_at_millis`, and what their writers recorded of sizes is not
        known. Where there is no snapshot that can be used it is `otherwise`'s view, with the
        reason.
        """
        self._check_there()
        view = self._base_view(sizes=sizes)
        found: Sequence[ShardManifest] | str = "a table with a row-merge policy gets no snapshot"
        if view.policy_text is None:
            found = self._snapshots.read(view.mem_wal)
        if isinstance(found, str):
            return replace(otherwise(), snapshot_unused=found)
        view = replace(view, taken_at_millis=view.mem_wal.snapshot_ts_millis)
        return self._add_shards(view, found, ())

    def base(self, version: int | None = None) -> TableView:
        """The table at a version (None: the latest), without its shards."""
        self._check_there()
        return self._base_view(version)

    def unready(self) -> TableView:
        """The latest version, without its shards, whatever a former MemWAL left beside it."""
        self._check_there()
        return self._base_view(ready=False)

    def at_checkpoint(self, found: Checkpoint) -> TableView:
        """The table at a checkpoint: its version, and the shards as they were, by its record.

        Raises Missing when the version is gone, Corruption when another table has its number now.
        """
        view = self.base(found.version)
        if view.manifest.timestamp_nanos != found.version_at_nanos:
            raise Corruption(
                "MW-C05",
                f"{self._objects.uri}: version {found.version} is not the one that checkpoint "
                f"{found.name!r} was made of: the table was deleted and written again since",
            )
        shards = [
            ShardManifest(
                shard_id=shard.shard_id,
                version=shard.manifest_version,
                writer_epoch=0,
                current_generation=shard.generation + 1,
                flushed_generations=shard.pending,
            )
            for shard in found.shards
        ]
        return self._add_shards(view, shards, ())

    def table_version(self) -> int:
        """The latest version's number. Raises NotATable."""
        self._check_there()
        return int(self._tables.base().version)

    def check_newest(self, seen: int = 0, told: Mapping[str, int] = MappingProxyType({})) -> None:
        """Raise Corruption if anything proves a newer version than all that are there.

        That is Lance's hint, which it writes on local disks only, or what is `told` (see
        `list_later_versions`). Versions are listed only if one is beyond `seen`. The next commit
        would take its number, and its rows would be gone for good. What tells of a version is
        written after it, and read before the versions are listed.
        """
        with suppress(Missing, Corruption):
            hint = decode_version_hint(self._objects.get(layout.TABLE_HINT, DOCUMENT_BYTES_MAX))
            told = {"Lance's hint": hint or 0, **told}
        source, version = max(told.items(), key=lambda pair: pair[1], default=("", 0))
        if version <= seen:
            return
        there = self._manifests.attached_versions(layout.DETACHED_BIT)
        if there and version > there[-1]:
            raise Corruption(
                "MW-C08",
                f"{self._objects.uri}: version {version} was committed, by {source}, and the "
                f"newest that is there is {there[-1]}. If its manifest is lost, a commit would "
                "take its place for good: `memwal repair --from BACKUP`, or `memwal restore`",
            )

    def _check_there(self) -> None:
        # One cheap request that tells "no such table" from "unreachable", with our own bounded
        # retries, before Lance starts its own long ones for the first time.
        if not self._is_there:
            check_table_folder(self._objects)
            self._is_there = True

    def shard(self, shard_id: ShardId) -> TableView:
        """The table with one shard (see the port)."""
        return self._details.add_sizes(self._settle(lambda: self._shard(shard_id)))

    def _shard(self, shard_id: ShardId) -> TableView:
        view = self._base_view()
        manifest = self._shards.latest(shard_id)
        if manifest is None:
            raise NotATable(f"{self._objects.uri}: shard {shard_id} has no manifest")
        view = self._add_shards(view, [manifest], view.strangers)
        if view.broken:
            raise view.broken[0].error
        return view

    def shards(self, shard_ids: Sequence[ShardId]) -> TableView:
        """The table with some shards (see the port)."""
        view = self._settle(
            lambda: self._add_shards(self._base_view(), self.read_shards(shard_ids), ())
        )
        return self._details.add_sizes(view)

    def list_shards(self, view: TableView) -> tuple[TableView, Sequence[ShardId]]:
        """The shards that have a folder; the view with what else lies among them."""
        found = list_shards(self._objects, folders_only=True)
        return replace(view, strangers=tuple(found.strangers)), found.shards

    def add_shards(
        self,
        view: TableView,
        shard_ids: Iterable[ShardId],
        listed: Mapping[ShardId, Sequence[StoredFile]],
    ) -> TableView:
        """A view of the base with these shards; their manifests are probed for unless `listed`."""
        chosen = sorted(shard_ids)
        found = self._each(lambda shard: self._try_shard(shard, listed.get(shard)), chosen)
        self._probed = {m.shard_id: m for m in found if isinstance(m, ShardManifest)}
        return self._add_shards(view, self._find_bare(view, chosen, found), view.strangers)

    def manifest(self, version: int) -> VersionManifest:
        """One version's own manifest (see the port)."""
        return self._manifests.read(version)

    def mem_wal(self, version: int) -> MemWalState:
        """MemWAL details of one version (see the port)."""
        return self._mem_wal_of(self._manifests.read(version))

    def _base_view(
        self, at: int | None = None, *, sizes: bool = False, ready: bool = True
    ) -> TableView:
        dataset, manifest = self._open(at)
        mem_wal = manifest.mem_wal or (
            self._without_mem_wal(manifest, latest=at is None) if ready else NO_MEM_WAL
        )
        version = manifest.version
        return TableView(
            uri=self._objects.uri,
            version=version,
            primary_key=primary_key_of(dataset),
            columns=columns_of(dataset),
            rows=dataset.count_rows(),
            manifest=manifest,
            mem_wal=mem_wal,
            shards=(),
            file_bytes=file_bytes_of(dataset) if sizes else None,
            policy_text=manifest.config.get(STORED_KEY),
            settled_ids=list_named(manifest.config),
            is_legacy=is_legacy(dataset),
        )

    def _open(self, at: int | None) -> tuple[Any, VersionManifest]:
        """A version and its own manifest; read again when the latest was expired in between.

        What was the latest version a moment ago may be old enough to be expired now.
        """
        for _ in range(_LATEST_ATTEMPTS_MAX):
            try:
                dataset = self._tables.look(at)
            except (Corruption, StoreUnavailable):
                check_restored(self._objects)
                raise
            try:
                return dataset, self._manifest_of(dataset)
            except Missing as error:
                missing = error
            if at is not None:
                break
        raise missing

    def _manifest_of(self, dataset: Any) -> VersionManifest:
        """The version's own manifest, read once as long as the table does not move on."""
        version = dataset.get_version()  # its time of commit and a summary of its files, too
        last = self._last
        if last is None or last[0] != version:
            last = self._last = (version, self._manifests.read(int(dataset.version)))
        return last[1]

    def _without_mem_wal(self, manifest: VersionManifest, *, latest: bool) -> MemWalState:
        # Of a table with shards, a version without the index is none of a plain table: it does not
        # tell which of the rows that wait belong to it.
        if left := list_shards(self._objects, folders_only=True).shards:
            return require_mem_wal(self._objects.uri, manifest, len(left) if latest else 0)
        return NO_MEM_WAL

    def _mem_wal_of(self, manifest: VersionManifest) -> MemWalState:
        return require_mem_wal(self._objects.uri, manifest)

    def _check_and_view(self) -> TableView:
        self._check_there()
        return self._base_view(sizes=True)

    def _view_reached(self) -> TableView:
        try:
            return self._base_view(sizes=True)
        except NotATable:
            self._check_there()  # says it more exactly
            raise

    def _try_shard(self, shard_id: ShardId, files: Sequence[StoredFile] | None = None) -> Found:
        """The latest manifest; among `files`, where they were listed already."""
        try:
            if files is None:
                return self._shards.latest(shard_id, self._probed.get(shard_id))
            return self._shards.newest(shard_id, newest_manifest(shard_id, files), self._memory)
        except MemWalError as error:
            return BrokenShard(shard_id=shard_id, error=error)

    def _add_listed(self, view: TableView, listing: ShardListing) -> TableView:
        """Add the listed shards; where their files were not listed, each is looked for."""
        with self._remembering(listing):
            found = (
                self._each(lambda s: self._try_shard(s, listing.files(s)), listing.shards)
                if listing.is_whole
                else self.read_shards(listing.shards)
            )
        found = self._find_bare(view, listing.shards, found)
        return self._add_shards(view, found, listing.strangers)

    def _find_bare(
        self, view: TableView, shards: Sequence[ShardId], found: Sequence[Found]
    ) -> Sequence[Found]:
        """What was found of the shards, where one that lost its manifests is a broken one.

        Without progress it may be one that nobody has claimed yet.
        """
        merged = view.mem_wal.merged
        return [
            self._judge_bare(shard) if one is None and merged.get(shard, 0) else one
            for shard, one in zip(shards, found, strict=True)
        ]

    def _judge_bare(self, shard_id: ShardId) -> Found:
        """None where writers have left nothing: the progress is that of a clone, not written to.

        A writer's first manifest comes before its rows, so it is looked for after them.
        """
        folder = f"{layout.shard_folder(shard_id)}/"
        names = {f.path.removeprefix(folder).partition("/")[0] for f in self._objects.list(folder)}
        if not any(n == "wal" or layout.parse_generation_folder(n) is not None for n in names):
            return None
        return self._try_shard(shard_id) or BrokenShard(
            shard_id=shard_id,
            error=Corruption(
                "MW-M06",
                f"{self._objects.uri}: shard {shard_id}: its folder has no manifest: "
                f"`memwal repair {self._objects.uri}` says what it still has",
            ),
        )

    def _add_shards(
        self, view: TableView, found: Sequence[Found], strangers: Sequence[str]
    ) -> TableView:
        shards = (_shard_view(view.mem_wal, m) for m in found if isinstance(m, ShardManifest))
        broken = tuple(s for s in found if isinstance(s, BrokenShard))
        view = replace(view, shards=tuple(shards), broken=broken, strangers=tuple(strangers))
        return self._settled.mark(self._inherited.part(view))

    def _each(self, work: Callable[[T], R], shards: Sequence[T]) -> list[R]:
        return side_by_side(work, shards, count_readers(self._objects))


def _count_pages_max(shards: int) -> int:
    return max(1, shards // _SHARDS_A_PAGE_MIN)


def _shard_view(state: MemWalState, manifest: ShardManifest) -> ShardView:
    return ShardView(manifest=manifest, merged_generation=state.merged.get(manifest.shard_id, 0))
