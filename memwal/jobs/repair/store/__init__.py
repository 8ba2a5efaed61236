"""Reads what a repair judges by, and does what it decides, over Lance and the object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from memwal.errors import (
    AlreadyExists,
    BadCredentials,
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
)
from memwal.format import codec, layout
from memwal.jobs.repair.model import (
    Evidence,
    Fetch,
    Flush,
    PutSentinel,
    ShardEvidence,
    StoredManifests,
)
from memwal.jobs.repair.store.backups import BackedUp
from memwal.jobs.rescue.store import LanceShardWriters
from memwal.jobs.verify.checks import TableChecks, find_newer_manifests, make_checks
from memwal.jobs.verify.plan import (
    CatchUpFacts,
    FileFault,
    Folders,
    GenerationFacts,
    Hint,
    WalFacts,
    find_bare_shards,
    find_newer,
)
from memwal.jobs.verify.store import StoredFacts, read_generation
from memwal.model import (
    Checkpoint,
    FlushedGeneration,
    LeaseClaim,
    ShardId,
    ShardManifest,
    ShardView,
    StoredFile,
    TableView,
    VersionManifest,
)
from memwal.ports import DOCUMENT_BYTES_MAX
from memwal.run.progress import Progress
from memwal.run.stores import Stores
from memwal.store.objects.copying import copy_object, digest_object
from memwal.store.records.checkpoints import LanceTags
from memwal.store.records.lease import encode_claim
from memwal.store.records.process import this_holder
from memwal.store.shards.listing import manifest_versions
from memwal.store.shards.writers import sentinel_bytes
from memwal.store.tables.indexes import build_again, replace_mem_wal_entry
from memwal.store.tables.manifests import DATA_FOOTER_BYTES, check_data_file
from memwal.threads import side_by_side

_READERS_MAX = 16
# Of a damaged shard so many of the newest manifests are read.
_MANIFESTS_MAX = 64
# So many keys of a generation that is lost are named.
_KEYS_MAX = 1000

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RememberedFacts(StoredFacts):
    """The facts of one look, each read once: the checks and the evidence share them."""

    known: dict[object, Any] = field(default_factory=dict)

    def _once(self, key: object, read: Callable[[], T]) -> T:
        if key not in self.known:
            self.known[key] = read()
        found: T = self.known[key]
        return found

    def list_folders(self, view: TableView) -> Folders:
        """As read once."""
        return self._once("folders", lambda: StoredFacts.list_folders(self, view))

    def read_generations(self, view: TableView) -> Sequence[GenerationFacts]:
        """As read once."""
        return self._once("generations", lambda: StoredFacts.read_generations(self, view))

    def read_wal(self, shard_id: ShardId) -> WalFacts:
        """As read once."""
        return self._once(("wal", shard_id), lambda: StoredFacts.read_wal(self, shard_id))

    def read_history(self, version: int) -> list[VersionManifest]:
        """As read once."""
        return self._once("history", lambda: StoredFacts.read_history(self, version))

    def read_catch_up(
        self, view: TableView, history: Sequence[VersionManifest]
    ) -> list[CatchUpFacts]:
        """As read once."""
        return self._once("catch-up", lambda: StoredFacts.read_catch_up(self, view, history))

    def read_snapshot(
        self, view: TableView
    ) -> tuple[Sequence[ShardManifest] | None, Mapping[ShardId, ShardManifest]]:
        """As read once."""
        return self._once("snapshot", lambda: StoredFacts.read_snapshot(self, view))

    def read_hints(self, view: TableView) -> list[Hint]:
        """As read once."""
        return self._once("hints", lambda: StoredFacts.read_hints(self, view))

    def read_checkpoints(self) -> tuple[list[Checkpoint], list[FileFault]]:
        """As read once."""
        return self._once("checkpoints", lambda: StoredFacts.read_checkpoints(self))

    def read_cut_faults(self) -> list[FileFault]:
        """As read once."""
        return self._once("cuts", lambda: StoredFacts.read_cut_faults(self))

    def read_records(self) -> list[FileFault]:
        """As read once."""
        return self._once("records", lambda: StoredFacts.read_records(self))

    def read_index_faults(self, view: TableView) -> list[FileFault]:
        """As read once."""
        return self._once("indexes", lambda: StoredFacts.read_index_faults(self, view))

    def read_base_faults(self, view: TableView) -> list[FileFault]:
        """As read once."""
        return self._once("base", lambda: StoredFacts.read_base_faults(self, view))


def read_newest(stores: Stores) -> TableView:
    """The newest version that can be read, without its shards. Raises Corruption without any."""
    try:
        return stores.views.base()
    except Corruption:
        for version in reversed(stores.table_manifests.attached_versions(layout.DETACHED_BIT)):
            with suppress(Corruption, Missing):
                return stores.views.base(version)
        raise


@dataclass(frozen=True, kw_only=True)
class StoredEvidence:
    """Looks at one table."""

    stores: Stores
    progress: Progress
    idle_seconds: float

    def look(self) -> Evidence:
        """One look: the checks of `verify`, and the facts behind them."""
        stores = self.stores
        try:
            view = stores.views.table()
        except Corruption:
            return self._look_at_versions()
        facts = RememberedFacts(
            objects=stores.objects,
            tables=stores.tables,
            views=stores.views,
            manifests=stores.table_manifests,
            wal=stores.wal,
            shard_manifests=stores.shard_manifests,
            clock=stores.clock,
        )
        checks = make_checks(TableChecks(facts, view, []).list_steps(), self.progress)
        history, version_faults = self._read_history(facts, view)
        checkpoints, checkpoint_faults = facts.read_checkpoints()
        bare = find_bare_shards(view, facts.list_folders(view).inside)
        without = [*(ShardId(broken.shard_id) for broken in view.broken), *bare]
        hints = [*facts.read_hints(view), *self._read_more_hints(facts, without)]
        found = Evidence(
            view=view,
            checks=tuple(checks),
            shards=tuple(self._read_shards(facts, view, without, hints, checkpoints)),
            hints=tuple(hints),
            checkpoints=tuple(checkpoints),
            checkpoint_faults=(*checkpoint_faults, *facts.read_cut_faults()),
            record_faults=tuple(facts.read_records()),
            index_faults=tuple(facts.read_index_faults(view)),
            base_faults=tuple(facts.read_base_faults(view)),
            version_faults=tuple(version_faults),
            committed=frozenset(self._list_commits()),
            history=tuple(history),
            rewound=frozenset(facts.find_rewound(history)),
            catch_up=tuple(facts.read_catch_up(view, history)),
            idle_seconds=self.idle_seconds,
            now_nanos=stores.clock.now_nanos(),
        )
        return self._add_files(found)

    def _look_at_versions(self) -> Evidence:
        """A look at a table whose shards can't be viewed: its versions tell of them.

        Raises what it can't be viewed for where these are sound.
        """
        view = read_newest(self.stores)
        versions = self.stores.table_manifests.attached_versions(layout.DETACHED_BIT)
        history, faults = self._read_versions(versions)
        if not faults:
            self.stores.views.table()
        found = Evidence(
            view=view,
            checks=(),
            shards=(),
            history=tuple(history),
            version_faults=tuple(faults),
            idle_seconds=self.idle_seconds,
            now_nanos=self.stores.clock.now_nanos(),
        )
        return self._add_files(found)

    def _read_history(
        self, facts: RememberedFacts, view: TableView
    ) -> tuple[list[VersionManifest], list[FileFault]]:
        """The retained versions that can be read, and what is wrong with the others."""
        manifests = self.stores.table_manifests
        faults: list[FileFault] = []
        try:
            found = facts.read_history(view.version)
        except Corruption:
            found, faults = self._read_versions(manifests.attached_versions(view.version))
        return found, [*faults, *(self._name_newest(f) for f in facts.read_newest_faults())]

    def _read_versions(
        self, versions: Sequence[int]
    ) -> tuple[list[VersionManifest], list[FileFault]]:
        found: list[VersionManifest] = []
        faults: list[FileFault] = []
        for version in versions:
            try:
                found.append(self.stores.table_manifests.read(version))
            except Missing:
                continue
            except Corruption as error:
                faults.append(self._make_fault(version, error))
        return found, faults

    def _make_fault(self, version: int, error: Corruption) -> FileFault:
        names = layout.table_manifest_names(version)
        paths = [f"{layout.VERSIONS}/{name}" for name in names]
        path = next((p for p in paths if self.stores.objects.exists(p)), paths[0])
        text = error.text.removeprefix(f"{self.stores.uri}: {path}: ")
        return FileFault(path=path, problem=text, name=str(version))

    def _name_newest(self, fault: FileFault) -> FileFault:
        version = layout.parse_table_manifest_name(fault.path.rpartition("/")[2])
        return replace(fault, name=str(version or 0))

    def _list_commits(self) -> Iterator[int]:
        """The versions that the files of transactions were begun from."""
        for file in self.stores.objects.list(layout.TRANSACTIONS):
            name = file.path.rpartition("/")[2].partition("-")[0]
            if name.isascii() and name.isdigit():
                yield int(name)

    def _read_more_hints(self, facts: StoredFacts, ids: Sequence[ShardId]) -> Sequence[Hint]:
        paths = [(layout.version_hint_path(shard), shard) for shard in ids]
        newest = [max(facts.shard_manifests.versions(shard), default=0) for shard in ids]
        read = [facts.read_hint(*pair, n) for pair, n in zip(paths, newest, strict=True)]
        return [hint for hint in read if hint is not None]

    def _read_shards(
        self,
        facts: RememberedFacts,
        view: TableView,
        without: Sequence[ShardId],
        hints: Sequence[Hint],
        checkpoints: Sequence[Checkpoint],
    ) -> list[ShardEvidence]:
        rows = _list_rows(facts, view)
        hinted = {hint.shard_id: hint.found for hint in hints if hint.shard_id is not None}
        named = facts.read_named_versions(view)
        wals = {shard.shard_id: facts.read_wal(shard.shard_id) for shard in view.shards}
        newer = find_newer_manifests(facts, view, hints, named, wals)
        listed: dict[ShardId, list[GenerationFacts]] = {}
        for generation in facts.read_generations(view):
            listed.setdefault(generation.shard_id, []).append(generation)
        views: dict[ShardId, ShardView | None] = {s.shard_id: s for s in view.shards}
        views |= dict.fromkeys(without)
        broken = {b.shard_id: b.error for b in view.broken}

        def read(shard_id: ShardId) -> ShardEvidence:
            shard = ShardEvidence(
                shard_id=shard_id,
                merged=view.mem_wal.merged.get(shard_id, 0),
                view=views[shard_id],
                newer=newer.get(shard_id, ()),
                hint=hinted.get(shard_id),
                snapshot=rows.get(shard_id),
                kept=_list_kept(shard_id, rows.get(shard_id), checkpoints),
                named_version=named.get(shard_id, 0),
                entries=facts.read_wal(shard_id).entries,
                listed=tuple(listed.get(shard_id, ())),
            )
            return self._read_more(facts, shard, view.primary_key, broken)

        return side_by_side(read, sorted(views), _READERS_MAX)

    def _read_more(
        self,
        facts: RememberedFacts,
        shard: ShardEvidence,
        primary_key: Sequence[str],
        broken: Mapping[str, Exception],
    ) -> ShardEvidence:
        """Add what only a damaged shard needs."""
        folder = f"{layout.shard_folder(shard.shard_id)}/"
        files = list(self.stores.objects.list(folder))
        names = {file.path.removeprefix(folder).partition("/")[0] for file in files}
        folders = frozenset(n for n in names if layout.parse_generation_folder(n) is not None)
        shard = replace(
            shard,
            folders=folders,
            newest_at_nanos=max((file.modified_at_nanos for file in files), default=0),
            keys=self._read_keys(shard) if len(primary_key) == 1 else {},
        )
        if shard.view is not None and not shard.newer and not _has_gap(shard.shard_id, files):
            newest = shard.view.manifest
            return replace(shard, manifests=StoredManifests(readable={newest.version: newest}))
        manifests = self._read_manifests(shard.shard_id)
        newest_readable = manifests.newest_readable
        is_sound = newest_readable is not None and newest_readable.version == manifests.highest
        error = broken.get(shard.shard_id)
        if newest_readable is not None and is_sound and isinstance(error, Corruption):
            # It is a generation that can't be read, not the manifest.
            shard = replace(
                shard,
                view=ShardView(manifest=newest_readable, merged_generation=shard.merged),
                listed=tuple(
                    read_generation(facts.generations, shard.shard_id, g)
                    for g in newest_readable.flushed_generations
                ),
            )
        if shard.view is None and newest_readable is not None:
            # Whether a clone's progress hides it is not asked here: that is no damage.
            found = find_newer(
                newest_readable,
                0,
                shard.hint,
                shard.named_version,
                facts.read_wal(shard.shard_id),
            )
            shard = replace(shard, newer=found)
        opened = {g.path for g in shard.kept if g.path in folders and self._opens(facts, shard, g)}
        return replace(shard, manifests=manifests, opened=frozenset(opened))

    def _read_keys(self, shard: ShardEvidence) -> dict[int, tuple[str, ...]]:
        """The keys in the damaged generations' own indexes, whose data may be gone."""
        bad = {f.generation for f in shard.listed if f.error is not None}
        listed = () if shard.view is None else shard.view.manifest.flushed_generations
        found = {}
        for g in (g for g in listed if g.generation in bad):
            path = layout.private_index_path(shard.shard_id, g.path, g.generation)
            with suppress(MemWalError):
                check_data_file(*self.stores.objects.get_tail(path, DATA_FOOTER_BYTES))
                values = self.stores.tables.file_values(path, "values", _KEYS_MAX)
                found[g.generation] = tuple(dict.fromkeys(map(str, values)))
        return found

    def _opens(
        self, facts: RememberedFacts, shard: ShardEvidence, generation: FlushedGeneration
    ) -> bool:
        try:
            facts.generations.open_dataset(shard.shard_id, generation)
        except (StoreUnavailable, BadCredentials):
            raise  # which says nothing about what is stored
        except (MemWalError, OSError, ValueError):
            return False
        return True

    def _read_manifests(self, shard_id: ShardId) -> StoredManifests:
        stored = self.stores.shard_manifests
        files = dict(stored.list_files(shard_id))
        versions = [v for v, f in files.items() if f.size_bytes != layout.STOPPER_BYTES]
        readable: dict[int, ShardManifest] = {}
        damaged: dict[int, str] = {}
        for version in sorted(versions, reverse=True)[:_MANIFESTS_MAX]:
            try:
                readable[version] = stored.read(shard_id, version)
            except Missing:
                continue
            except Corruption as error:
                damaged[version] = error.text
        return StoredManifests(
            readable=readable, damaged=damaged, stored=frozenset(files), times=_list_times(files)
        )

    def _add_files(self, found: Evidence) -> Evidence:
        """Add digests and times of the files that something is wrong with."""
        faults = (*found.record_faults, *found.checkpoint_faults)
        paths = [fault.path for fault in (*faults, *found.version_faults)]
        paths += [layout.checkpoint_path(f.name) for f in found.checkpoint_faults]
        paths += [hint.path for hint in found.hints if hint.problem is not None]
        paths += [
            layout.wal_entry_path(shard.shard_id, entry.position)
            for shard in found.shards
            for entry in shard.entries
            if entry.problem is not None and not entry.refused
        ]
        digests: dict[str, str] = {}
        for path in paths:
            with suppress(Missing):
                digests[path] = digest_object(self.stores.objects, path).sha256.hex()
        times = {
            file.path: file.modified_at_nanos
            for file in (self.stores.objects.list(layout.LEASE) if digests else ())
        }
        return replace(found, digests=digests, times=times)


def _list_times(files: Mapping[int, StoredFile]) -> dict[int, int]:
    return {version: file.modified_at_nanos for version, file in files.items()}


def _has_gap(shard_id: ShardId, files: Iterable[StoredFile]) -> bool:
    """Whether a manifest's version is missing below a higher one."""
    versions = manifest_versions(shard_id, files)
    return max(versions, default=0) - min(versions, default=1) >= len(versions)


def _list_rows(facts: StoredFacts, view: TableView) -> dict[ShardId, ShardManifest]:
    """The shard snapshot's rows; none where it can't be read."""
    try:
        return {row.shard_id: row for row in facts.read_snapshot(view)[0] or ()}
    except MemWalError:
        return {}


def _list_kept(
    shard_id: ShardId, row: ShardManifest | None, checkpoints: Iterable[Checkpoint]
) -> tuple[FlushedGeneration, ...]:
    """The generations of a shard that its row in the snapshot or a checkpoint names."""
    kept = {} if row is None else {g.generation: g for g in row.flushed_generations}
    for checkpoint in checkpoints:
        for cut in checkpoint.shards:
            if cut.shard_id == shard_id:
                kept |= {g.generation: g for g in cut.pending}
    return tuple(kept[number] for number in sorted(kept))


@dataclass(frozen=True, kw_only=True)
class StoredHands:
    """The Hands port. `refresh` takes the shard snapshot again."""

    stores: Stores
    run_id: str
    refresh: Callable[[], None]
    backed_up: BackedUp | None = None

    def quarantine(self, path: str, digest: str) -> None:
        """Copy an object (see the port)."""
        objects, kept = self.stores.objects, layout.quarantine_path(self.run_id, path)
        try:
            found = digest_object(objects, path)
            if found.sha256.hex() == digest:
                copy_object(objects, objects, path, to=kept, expected=found)
                return
        except Missing:
            raise LostRace(f"{objects.uri}: {path} is gone meanwhile") from None
        except Refused:
            raise LostRace(f"{objects.uri}: {kept} has other bytes already") from None
        except Corruption:
            pass
        raise LostRace(f"{objects.uri}: {path} was written meanwhile")

    def put_manifest(self, manifest: ShardManifest) -> None:
        """Store a shard's manifest (see the port)."""
        path = layout.shard_manifest_path(manifest.shard_id, manifest.version)
        self._create(path, codec.encode_shard_manifest(manifest))
        hint = layout.version_hint_path(manifest.shard_id)
        with suppress(MemWalError):
            self.stores.objects.put(hint, layout.encode_version_hint(manifest.version))

    def put_stopper(self, shard_id: ShardId, version: int, at_nanos: int) -> None:
        """Take the name of a manifest that is missing (see the port)."""
        self._create(layout.shard_manifest_path(shard_id, version), layout.encode_stopper(at_nanos))

    def put_sentinel(self, effect: PutSentinel) -> None:
        """Put an empty WAL entry (see the port)."""
        data = sentinel_bytes(effect.writer_epoch)
        if effect.digest is None:
            self._create(effect.path, data)
        else:
            self.stores.objects.put(effect.path, data)

    def _create(self, path: str, data: bytes) -> None:
        objects = self.stores.objects
        try:
            objects.put_if_absent(path, data)
        except (AlreadyExists, StoreUnavailable):
            try:
                stored = objects.get(path, DOCUMENT_BYTES_MAX)
            except Missing:
                raise
            if stored != data:
                raise LostRace(f"{objects.uri}: {path} was written by someone else") from None

    def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint's record (see the port)."""
        self.stores.checkpoints.put(checkpoint)

    def release_claim(self, token: int) -> None:
        """Put a released claim (see the port)."""
        now = self.stores.clock.now_nanos()
        claim = LeaseClaim(
            token=token,
            claim_id=self.stores.clock.new_id(),
            holder=this_holder(),
            job="repair",
            acquired_at_nanos=now,
            expires_at_nanos=now,
            released=True,
            reason="the claim of this number could not be read; it is in quarantine",
            run_id=self.run_id,
        )
        self.stores.objects.put(layout.lease_claim_path(token), encode_claim(claim))

    def replace(self, path: str, data: bytes) -> None:
        """Put another object in the place of one (see the port)."""
        self.stores.objects.put(path, data)

    def remove(self, path: str) -> None:
        """Delete an object (see the port)."""
        for _, why in self.stores.objects.delete([path]).failed:
            raise StoreUnavailable(f"{self.stores.uri}: {path} can't be moved away: {why}")

    def flush(self, effect: Flush) -> None:
        """Claim a shard and flush its WAL (see the port)."""
        LanceShardWriters(self.stores.tables).claim(
            effect.shard_id,
            memtable_rows_max=effect.memtable_rows_max,
            memtable_batches_max=effect.memtable_batches_max,
        ).flush()

    def tag(self, key: str, version: int) -> None:
        """Tag a version (see the port)."""
        LanceTags(self.stores.tables).tag(layout.checkpoint_tag(key), version)

    def build_index(self, name: str) -> None:
        """Build an index again (see the port)."""
        build_again(self.stores.tables.base(), name)

    def raise_progress(self, version: int, merged: Mapping[ShardId, int]) -> None:
        """Raise merge progress (see the port).

        A commit that landed in between shows as a version too many; if it had progress of its own,
        the next look finds that this one lowered it.
        """
        state = self.stores.views.mem_wal(version)
        details = codec.encode_snapshot(
            state,
            taken_at_millis=state.snapshot_ts_millis,
            num_shards=state.num_shards,
            inline=state.inline_snapshots,
            merged=merged,
        )
        replace_mem_wal_entry(
            self.stores.tables,
            version=version,
            index_uuid=self.stores.clock.new_id(),
            created_at_millis=state.created_at_millis or self.stores.clock.now_nanos() // 10**6,
            details=details,
        )

    def take_snapshot(self) -> None:
        """Take the shard snapshot again (see the port)."""
        self.refresh()

    def fetch(self, effect: Fetch) -> None:
        """Copy an object from a backup (see the port)."""
        if self.backed_up is not None:
            self.backed_up.fetch(effect)
