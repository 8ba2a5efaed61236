"""Reads what a repair judges by, and does what it decides, over Lance and the object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from memwal.errors import (
    AlreadyExists,
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
)
from memwal.format import codec, layout
from memwal.jobs.repair.backups import BackedUp
from memwal.jobs.repair.model import (
    Effect,
    Evidence,
    Flush,
    PutManifest,
    PutStopper,
    RaiseProgress,
    Replace,
    ShardEvidence,
    TakeSnapshot,
)
from memwal.jobs.rescue.store import LanceShardWriters, StoredShardWal
from memwal.jobs.verify.checks import find_newer_manifests, list_checks, make_checks
from memwal.jobs.verify.plan import FileFault, Hint, find_bare_shards, find_newer
from memwal.jobs.verify.store import StoredFacts
from memwal.model import (
    BackupObject,
    ShardId,
    ShardManifest,
    TableView,
    VersionManifest,
)
from memwal.ports import DOCUMENT_BYTES_MAX
from memwal.run.progress import Progress
from memwal.run.stores import Stores
from memwal.store.objects.copying import copy_object, digest_object
from memwal.store.records.lease import encode_claim
from memwal.store.tables.indexes import replace_mem_wal_entry

_UNREAD = "the claim of this number could not be read; it is in quarantine"
# Of a damaged shard so many of the newest manifests are read.
_MANIFESTS_MAX = 64


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
class StoredRepair:
    """Looks at one table, and mends it. `refresh` takes the shard snapshot again.

    Each effect raises LostRace for what is not as it was judged.
    """

    stores: Stores
    progress: Progress
    run_id: str
    refresh: Callable[[], object]
    backed_up: BackedUp | None = None

    def look(self) -> Evidence:
        """One look: the checks of `verify`, and the facts behind them."""
        stores = self.stores
        try:
            view = stores.views.table()
        except Corruption:
            return self._look_at_versions()
        facts = StoredFacts(stores, view)
        checks = make_checks(list_checks(facts), self.progress)
        history, version_faults = self._read_history(facts)
        hints, shards = self._read_shards(facts)
        records = (*facts.record_faults, *facts.checkpoints[1])
        wrong: list[FileFault | Hint] = [*records]
        wrong += (hint for hint in hints if hint.problem is not None)
        return Evidence(
            view=view,
            checks=tuple(checks),
            shards=tuple(shards),
            hints=tuple(hints),
            generations=tuple(facts.generation_facts),
            file_faults=(*facts.base_faults, *facts.cut_faults),
            version_faults=tuple(version_faults),
            record_faults=records,
            committed=frozenset(self._list_commits()),
            history=tuple(history),
            rewound=frozenset(facts.find_rewound(history)),
            digests=dict(self._digest(found.path for found in wrong)),
            times={f.path: f.modified_at_nanos for f in stores.objects.list(layout.LEASE)},
            now_nanos=stores.clock.now_nanos(),
        )

    def _look_at_versions(self) -> Evidence:
        """A look at a table whose shards can't be viewed: its versions tell of them.

        Raises what it can't be viewed for where these are sound.
        """
        view = read_newest(self.stores)
        history, faults = self._read_versions(layout.DETACHED_BIT)
        if not faults:
            self.stores.views.table()
        return Evidence(view=view, history=tuple(history), version_faults=tuple(faults))

    def _read_history(self, facts: StoredFacts) -> tuple[list[VersionManifest], list[FileFault]]:
        """The retained versions that can be read, and what is wrong with the others."""
        try:
            found, faults = facts.history, list[FileFault]()
        except Corruption:
            found, faults = self._read_versions(facts.view.version)
        return found, [*faults, *facts.newest_faults]

    def _read_versions(self, last: int) -> tuple[list[VersionManifest], list[FileFault]]:
        found: list[VersionManifest] = []
        faults: list[FileFault] = []
        for version in self.stores.table_manifests.attached_versions(last):
            try:
                found.append(self.stores.table_manifests.read(version))
            except Missing:
                continue
            except Corruption as error:
                names = layout.table_manifest_names(version)
                paths = [f"{layout.VERSIONS}/{name}" for name in names]
                path = next((p for p in paths if self.stores.objects.exists(p)), paths[0])
                text = error.text.removeprefix(f"{self.stores.uri}: {path}: ")
                faults.append(FileFault(path=path, problem=text))
        return found, faults

    def _list_commits(self) -> Iterator[int]:
        """The versions that the files of transactions were begun from."""
        for file in self.stores.objects.list(layout.TRANSACTIONS):
            name = file.path.rpartition("/")[2].partition("-")[0]
            if name.isascii() and name.isdigit():
                yield int(name)

    def _read_shards(self, facts: StoredFacts) -> tuple[list[Hint], list[ShardEvidence]]:
        """The hints, and the shards whose newest manifest is in doubt."""
        view = facts.view
        errors = {ShardId(broken.shard_id): broken.error for broken in view.broken}
        without = [*errors, *find_bare_shards(view, facts.folders[0])]
        hints = list(facts.hints)
        for shard_id in without:
            newest = max(facts.shard_manifests.versions(shard_id), default=0)
            hint = facts.read_hint(layout.version_hint_path(shard_id), shard_id, newest)
            hints += [] if hint is None else [hint]
        named = facts.read_named_versions()
        newer = find_newer_manifests(facts, hints, named)
        hinted = {hint.shard_id: hint.found for hint in hints}
        check = partial(self.stores.views.field_ids.check_entry, view.version)
        wal, found = StoredShardWal(self.stores.objects, check=check), []
        for shard_id in sorted({*without, *newer}):
            entries = facts.read_wal(shard_id).entries
            shard = ShardEvidence(
                shard_id=shard_id,
                merged=view.mem_wal.merged.get(shard_id, 0),
                error=errors.get(shard_id),
                newer=newer.get(shard_id, ()),
                **self._read_manifests(shard_id),
                hint=hinted.get(shard_id),
                named_version=named.get(shard_id, 0),
                entries=entries,
                unfit=wal.judge(shard_id, entries),
                folders=frozenset(
                    name
                    for name in facts.folders[0].get(shard_id, ())
                    if layout.parse_generation_folder(name) is not None
                ),
            )
            if shard_id in without and (base := shard.base) is not None:
                # Whether a clone's progress hides it is not asked here: that is no damage.
                told = (shard.hint, shard.named_version, facts.read_wal(shard_id))
                shard = replace(shard, newer=find_newer(base, 0, *told))
            found.append(shard)
        return hints, found

    def _read_manifests(self, shard_id: ShardId) -> dict[str, Any]:
        stored = self.stores.shard_manifests
        files = dict(stored.list_files(shard_id))
        versions = [v for v, f in files.items() if f.size_bytes != layout.STOPPER_BYTES]
        readable: dict[int, ShardManifest] = {}
        damaged: dict[int, str] = {}
        for version in sorted(versions, reverse=True)[:_MANIFESTS_MAX]:
            try:
                with suppress(Missing):
                    readable[version] = stored.read(shard_id, version)
            except Corruption as error:
                damaged[version] = error.text
        times = {version: file.modified_at_nanos for version, file in files.items()}
        return {"readable": readable, "damaged": damaged, "times": times}

    def _digest(self, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        for path in paths:
            with suppress(Missing):
                yield path, digest_object(self.stores.objects, path).sha256.hex()

    def quarantine(self, path: str, digest: str) -> None:
        """Copy an object with that digest to where a repair keeps what it replaces."""
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

    def apply(self, effect: Effect) -> None:
        """Do one effect; what it replaces is in quarantine by then."""
        match effect:
            case PutManifest(manifest=manifest):
                path = layout.shard_manifest_path(manifest.shard_id, manifest.version)
                self._create(path, codec.encode_shard_manifest(manifest))
                hint = layout.version_hint_path(manifest.shard_id)
                with suppress(MemWalError):
                    self.stores.objects.put(hint, layout.encode_version_hint(manifest.version))
            case PutStopper():
                self._create(effect.path, layout.encode_stopper(effect.at_nanos))
            case Flush():
                LanceShardWriters(self.stores.tables).claim(effect.shard_id, **effect.memtable)()
            case Replace(path=path, by=bytes() as data):
                self.stores.objects.put(path, data)
            case Replace(path=path, by=None):
                if (token := layout.parse_lease_claim(path)) is not None:
                    claim = self.stores.leases.make(token, "repair", reason=_UNREAD)
                    # Nobody knows whether it was a refresh's.
                    self.stores.objects.put(path, encode_claim(replace(claim, unfenced=True)))
                    return
                for _, why in self.stores.objects.delete([path]).failed:
                    raise StoreUnavailable(f"{self.stores.uri}: {path} can't be moved away: {why}")
            case Replace(by=BackupObject() as wanted) if self.backed_up is not None:
                self.backed_up.fetch(wanted, is_there=effect.digest is not None)
            case RaiseProgress():
                self._raise_progress(effect.version, effect.merged)
            case TakeSnapshot():
                self.refresh()

    def _create(self, path: str, data: bytes) -> None:
        objects = self.stores.objects
        try:
            objects.put_if_absent(path, data)
        except (AlreadyExists, StoreUnavailable):
            if objects.get(path, DOCUMENT_BYTES_MAX) != data:
                raise LostRace(f"{objects.uri}: {path} was written by someone else") from None

    def _raise_progress(self, version: int, merged: Mapping[ShardId, int]) -> None:
        """A commit that landed in between shows as a version too many; if it had progress of its
        own, the next look finds that this one lowered it.
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
