"""Reads the facts that `verify` judges: generations and their keys, versions, WALs, folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, pairwise

import pyarrow as pa

from memwal.errors import (
    BadCredentials,
    Corruption,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
)
from memwal.format import layout
from memwal.format.codec import decode_version_hint
from memwal.jobs.verify.plan import (
    CatchUpFacts,
    FileFault,
    GenerationFacts,
    Hint,
    PrivateIndexFacts,
    WalFacts,
    find_recording,
    has_fallen,
)
from memwal.model import (
    Checkpoint,
    Cursor,
    FlushedGeneration,
    ShardId,
    ShardManifest,
    SharedKey,
    StoredFile,
    TableView,
    VersionManifest,
)
from memwal.ports import DOCUMENT_BYTES_MAX
from memwal.rows.keyset import find_shared_key, show_keys
from memwal.rows.progress import check_lineage
from memwal.run.progress import Progress
from memwal.run.stores import Stores
from memwal.store.records.backups import StoredBackups
from memwal.store.records.checkpoints import StoredCheckpoints
from memwal.store.records.cursors import StoredCursors
from memwal.store.records.former_merges import read_record
from memwal.store.records.lease import StoredLeases
from memwal.store.records.runs import StoredRunRecords, list_later_versions
from memwal.store.shards.snapshots import ShardSnapshots, decode_snapshot
from memwal.store.tables.datasets import (
    REWINDING,
    LanceTables,
    find_all_double_keys,
    list_data_files,
    list_deletions,
)
from memwal.store.tables.generations import Generations
from memwal.store.tables.indexes import find_index_faults, lets_go_of_progress
from memwal.store.tables.lance_calls import tidy_text, translated
from memwal.store.tables.manifests import DATA_FOOTER_BYTES, check_data_file
from memwal.store.tables.pages import Part, find_fault, list_fragments, list_index_files
from memwal.threads import side_by_side

_READERS_MAX = 16
_RECORDS_MAX = 8
# Of those that read whole files, which takes memory.
_DEEP_READERS_MAX = 4


class StoredFacts:
    """The facts about one table and a view of it. What several checks ask for is read once."""

    def __init__(self, stores: Stores, view: TableView) -> None:
        self.view = view
        self.objects, self.tables, self.views = stores.objects, stores.tables, stores.views
        self.manifests, self.shard_manifests = stores.table_manifests, stores.shard_manifests
        self.wal, self.clock = stores.wal, stores.clock
        self.generations = Generations(
            objects=self.objects, tables=self.tables, field_ids=self.views.field_ids
        )
        self._wals: dict[ShardId, WalFacts] = {}

    def check_unforked(self) -> None:
        """Raise Corruption for a shard's manifest that leads to none of those above it.

        In a place of backups, each of these holds a manifest of its own.
        """
        held = {
            (shard.shard_id, shard.manifest_version)
            for backup in StoredBackups(self.objects).list()
            for shard in backup.shards
        }
        for shard in self.view.shards:
            sizes = {
                version: file.size_bytes
                for version, file in self.shard_manifests.list_files(shard.shard_id)
                if (shard.shard_id, version) not in held or version == shard.manifest.version
            }
            self.shard_manifests.check_unforked(shard.shard_id, sizes)

    @cached_property
    def generation_facts(self) -> Sequence[GenerationFacts]:
        """What opening each listed generation shows."""
        pairs = _list_listed(self.view)
        return side_by_side(
            lambda pair: read_generation(self.generations, *pair), pairs, _READERS_MAX
        )

    def read_private_indexes(self) -> Sequence[PrivateIndexFacts]:
        """Read the private key indexes of pending generations; a table without a key has none."""
        return side_by_side(
            lambda pair: read_private_index(self.generations, *pair),
            _list_pending(self.view) if self.view.primary_key else [],
            _READERS_MAX,
        )

    def find_shared_key(self, rows_max: int) -> tuple[SharedKey | None, int]:
        """A key that is in two shards, if any, and among how many rows it was looked for.

        With more than `rows_max` rows, no key is read. There can be none without a primary key, or
        if fewer than two shards have rows. Merged generations that are still listed count only if
        a spec has a column outside the key, by which any two shards can get the same key; otherwise
        a shard may simply have taken over the values of another.
        """
        view, pending = self.view, _list_pending(self.view)
        held = _list_listed(view) if has_movers(view) else pending
        if not view.primary_key or len({shard_id for shard_id, _ in held}) < 2:
            return None, 0
        found, rows = self._find_shared(pending, rows_max)
        if found is None and rows <= rows_max and len(held) > len(pending):
            found, rows = self._find_shared(held, rows_max)
            found = None if found is None else replace(found, is_merged=True)
        return found, rows

    def _find_shared(
        self, pending: Sequence[tuple[ShardId, FlushedGeneration]], rows_max: int
    ) -> tuple[SharedKey | None, int]:
        view = self.view
        sources = side_by_side(
            lambda pair: self.generations.open(view, *pair), pending, _READERS_MAX
        )
        rows = sum(
            side_by_side(lambda source: int(source.dataset.count_rows()), sources, _READERS_MAX)
        )
        if rows > rows_max:
            return None, rows
        found = side_by_side(
            lambda opened: self.generations.keys(*opened[0], opened[1], view.primary_key),
            list(zip(pending, sources, strict=True)),
            _READERS_MAX,
        )
        tables: dict[ShardId, list[pa.Table]] = {}
        for (shard_id, _), table in zip(pending, found, strict=True):
            tables.setdefault(shard_id, []).append(table)
        return find_shared_key(tables, view.primary_key), rows

    def find_double_keys(self) -> tuple[list[str] | None, int]:
        """The keys that the base holds more than once, for people, and among how many rows.

        None if there are too many rows. There can be none without a primary key.
        """
        key = self.view.primary_key
        if not key:
            return [], 0
        base = self.tables.base(self.view.version)
        with translated(lambda error: StoreUnavailable(tidy_text(error))):
            found, rows = find_all_double_keys(base, key)
        return None if found is None else show_keys(found), rows

    @cached_property
    def history(self) -> list[VersionManifest]:
        """The retained versions up to the view's, ascending."""
        versions = self.manifests.attached_versions(self.view.version)
        found = side_by_side(self._read_manifest, versions, _READERS_MAX)
        return [manifest for manifest in found if manifest is not None]

    def _read_manifest(self, version: int) -> VersionManifest | None:
        try:
            return self.manifests.read(version)
        except Missing:
            return None  # expired since it was listed

    def find_rewound(self, history: Sequence[VersionManifest]) -> set[int]:
        """The versions in which a user turned time back."""
        return {
            after.version
            for before, after in pairwise(history)
            if has_fallen(before, after)
            and (
                self.tables.read_operation(after.version) in REWINDING
                or lets_go_of_progress(self.tables, after.version)
            )
        }

    def read_catch_up(self) -> list[CatchUpFacts]:
        """Read the coverage behind each index's catch-up claim."""
        coverage = read_uncovered_fragments(self.tables, self.view.version)
        facts = []
        for name, claim in self.view.mem_wal.index_catchup.items():
            recorded = find_recording(self.history, name, claim)
            level = None if recorded is None else read_highest_fragment(self.tables, recorded)
            facts.append(
                CatchUpFacts(
                    index=name,
                    claim=claim,
                    uncovered_fragments=coverage.get(name, ()),
                    claimed_at_fragment=level,
                )
            )
        return facts

    @cached_property
    def snapshot(
        self,
    ) -> tuple[Sequence[ShardManifest] | None, Mapping[ShardId, ShardManifest]]:
        """The shard snapshot's rows, and the manifests that they name, if still stored.

        It is read whether it is confirmed or not; the rows are None without a snapshot. Raises
        Corruption for one that can't be read.
        """
        data = ShardSnapshots(self.objects).find_bytes(self.view.mem_wal)
        if data is None:
            return None, {}
        found = decode_snapshot(data)
        now = {shard.shard_id: shard.manifest for shard in self.view.shards}

        def read(row: ShardManifest) -> ShardManifest | None:
            current = now.get(row.shard_id)
            if current is None or current.version == row.version:
                return current
            with suppress(Missing):  # collected since
                return self.shard_manifests.read(row.shard_id, row.version)
            return None

        of = side_by_side(read, found, _READERS_MAX)
        return found, {manifest.shard_id: manifest for manifest in of if manifest is not None}

    def read_wal(self, shard_id: ShardId) -> WalFacts:
        """Read a shard's WAL, entry by entry."""
        if shard_id in self._wals:
            return self._wals[shard_id]
        seen = next((s.manifest for s in self.view.shards if s.shard_id == shard_id), None)
        listed = self.wal.list_settled(seen) if seen else self.wal.list_entries(shard_id)
        entries = self.wal.describe(shard_id, listed)
        where = f"{self.objects.uri}: shard {shard_id}: "
        read = [e for e in entries if e.writer_epoch is not None]
        found = self._wals[shard_id] = WalFacts(
            shard_id=shard_id,
            positions=tuple(position for position, _ in listed),
            sentinel_epochs=frozenset(e.writer_epoch or 0 for e in read if e.fence_sentinel),
            row_epochs=frozenset(e.writer_epoch or 0 for e in read if not e.fence_sentinel),
            broken=tuple(f"{where}{e.problem}" for e in entries if e.problem and not e.refused),
            refused=tuple(f"{where}{e.problem}" for e in entries if e.refused),
            entries=tuple(entries),
        )
        return found

    @cached_property
    def hints(self) -> list[Hint]:
        """The hints that are there, of the table and of its shards."""
        # A hint is read before what it leads to: then a live writer can't make it look wrong.
        table = self.read_hint(layout.TABLE_HINT, None, 0)
        hints = [table and replace(table, newest=self.find_newest_version())]
        manifests = [shard.manifest for shard in self.view.shards]
        hints += side_by_side(self._read_shard_hint, manifests, _READERS_MAX)
        return [hint for hint in hints if hint is not None]

    def _read_shard_hint(self, seen: ShardManifest) -> Hint | None:
        path = layout.version_hint_path(seen.shard_id)
        hint = self.read_hint(path, seen.shard_id, seen.version)
        if hint is None or hint.problem is None:
            return hint
        return replace(hint, newest=max(self.shard_manifests.versions(seen.shard_id), default=0))

    def find_newest_version(self) -> int:
        """The newest version of the table by the names of its manifests; 0 without any."""
        return max((v for v in self.manifests.versions() if not layout.is_detached(v)), default=0)

    @cached_property
    def newest_faults(self) -> list[FileFault]:
        """What is wrong with the newest version's manifest: Lance may take it for an older one.
        And versions above it that something of memwal's names, and no hint: that is told already.
        """
        records = StoredRunRecords(self.objects).newest(_RECORDS_MAX).records
        checkpoints, cursors = self.checkpoints[0], self._read_cursors()
        newest = self.find_newest_version()  # after what may name it
        try:
            found = self._read_manifest(newest)
        except Corruption as error:
            return [FileFault(path=_path_of(newest), problem=error.text)]
        told = list_later_versions(found, records, checkpoints, cursors) if found else {}
        hint = self.read_hint(layout.TABLE_HINT, None, newest)
        lost = {v: what for what, v in told.items() if hint is None or v > (hint.found or 0)}
        return [FileFault(path=_path_of(v), problem=f"is lost: {lost[v]} names it") for v in lost]

    def read_tag_faults(self) -> list[FileFault]:
        """Tags that can't be read, or whose version is gone. Those of checkpoints are not among
        them: `checkpoints` tells of them.
        """
        faults, there = list[FileFault](), dict[str, set[int | None]]()
        for file in self.objects.list("_refs/tags"):
            if file.path.startswith(layout.checkpoint_tag_path("").removesuffix(".json")):
                continue
            try:
                tag = json.loads(self.objects.get(file.path, DOCUMENT_BYTES_MAX))
                folder, version = layout.versions_folder(tag.get("branch")), int(tag["version"])
                if folder not in there:  # listed after the tag was read: its version came before
                    names = (f.path.rpartition("/")[2] for f in self.objects.list(folder))
                    there[folder] = set(map(layout.parse_table_manifest_name, names))
            except Missing:
                continue
            except (Corruption, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                faults.append(FileFault(path=file.path, problem="can't be read as a tag"))
                continue
            if version not in there[folder]:
                text = f"names version {version}, which is not in {folder}: delete the tag"
                faults.append(FileFault(path=file.path, problem=text))
        return faults

    def _read_cursors(self) -> Sequence[Cursor]:
        try:
            return StoredCursors(self.objects).list()
        except Corruption:
            return ()  # the check of records tells

    def has_moved(self, seen: ShardManifest) -> bool:
        """Whether a live writer has written a newer manifest since."""
        latest = self.shard_manifests.latest(seen.shard_id)
        return latest is not None and latest.version != seen.version

    def read_hint(self, path: str, shard_id: ShardId | None, newest: int) -> Hint | None:
        """One hint; None if there is none."""
        try:
            data = self.objects.get(path, DOCUMENT_BYTES_MAX)
        except Missing:
            return None
        except Corruption:
            data = b""
        found = decode_version_hint(data)
        return Hint(path=path, shard_id=shard_id, found=found, newest=newest)

    def read_named_versions(self) -> dict[ShardId, int]:
        """The newest manifest version of each shard that a snapshot or a checkpoint names."""
        named: dict[ShardId, int] = {}
        with suppress(MemWalError):
            for row in self.snapshot[0] or ():
                named[row.shard_id] = max(row.version, named.get(row.shard_id, 0))
        for checkpoint in self.checkpoints[0]:
            for shard in checkpoint.shards:
                named[shard.shard_id] = max(shard.manifest_version, named.get(shard.shard_id, 0))
        return named

    @cached_property
    def checkpoints(self) -> tuple[list[Checkpoint], list[FileFault]]:
        """The checkpoints in force that can be read, and what is wrong with any."""
        stored, now = StoredCheckpoints(self.objects), self.clock.now_nanos()
        found, faults = [], []
        for file in self.objects.list(layout.CHECKPOINTS):
            key = layout.parse_checkpoint_path(file.path)
            if key is None:
                continue
            try:
                checkpoint = stored.read(key)
            except Corruption as error:
                text = error.text.removeprefix(f"{self.objects.uri}: {file.path} ")
                newer = self._is_newer(file.path)
                faults.append(FileFault(path=file.path, problem=text, name=key, is_newer=newer))
                continue
            if checkpoint is None or not checkpoint.ready or checkpoint.is_expired(now):
                continue
            found.append(checkpoint)
            if not stored.is_tagged(checkpoint):
                text = f"checkpoint {checkpoint.name!r} has no tag that names its version"
                path = layout.checkpoint_tag_path(key)
                faults.append(FileFault(path=path, problem=text, name=key))
        return found, faults

    @cached_property
    def cut_faults(self) -> list[FileFault]:
        """The generations that checkpoints in force need, and that can't be opened."""
        needed = {
            (shard.shard_id, generation.path): (checkpoint, generation)
            for checkpoint in self.checkpoints[0]
            for shard in checkpoint.shards
            for generation in shard.pending
        }

        def look(pair: tuple[ShardId, str]) -> GenerationFacts:
            return read_generation(self.generations, pair[0], needed[pair][1])

        faults = []
        for pair, found in zip(needed, side_by_side(look, list(needed), _READERS_MAX), strict=True):
            if found.error is not None:
                checkpoint = needed[pair][0]
                path = f"{layout.shard_folder(pair[0])}/{pair[1]}"
                text = f"checkpoint {checkpoint.name!r} needs it: {found.error}"
                faults.append(FileFault(path=path, problem=text, name=checkpoint.key))
        return faults

    @cached_property
    def record_faults(self) -> list[FileFault]:
        """What is wrong with the documents that memwal keeps for itself, checkpoints aside."""
        listed = self.objects.list(layout.MAINTENANCE)
        files = [file for file in listed if layout.is_record(file.path)]
        found = side_by_side(self._look_at, files, _READERS_MAX)
        return [
            FileFault(path=file.path, problem=problem, is_newer=self._is_newer(file.path))
            for file, problem in zip(files, found, strict=True)
            if problem is not None
        ]

    def _look_at(self, file: StoredFile) -> str | None:
        """What is wrong with one document; None if nothing is, as far as is known here."""
        folder, _, name = file.path.rpartition("/")
        stem = name.removesuffix(".json")
        try:
            if (token := layout.parse_lease_claim(file.path)) is not None:
                StoredLeases(self.objects, self.clock).read(token)
            elif folder == layout.RUNS and layout.parse_run_record_name(name) is not None:
                if StoredRunRecords(self.objects).is_unreadable(file):
                    return "can't be read as a run's record"
            elif folder == layout.SETTLED and layout.is_shard_folder(stem):
                if read_record(self.objects, stem) is None:
                    return "can't be read as a record of what was merged"
            else:
                json.loads(self.objects.get(file.path, DOCUMENT_BYTES_MAX))
        except Missing:
            return None
        except Corruption as error:
            return error.text.removeprefix(f"{self.objects.uri}: {file.path} ")
        except (ValueError, RecursionError):
            return "is no JSON"
        return None

    def _is_newer(self, path: str) -> bool:
        """Whether a document that can't be read says that it has another format."""
        try:
            document = json.loads(self.objects.get(path, DOCUMENT_BYTES_MAX))
        except (Missing, Corruption, ValueError, RecursionError):
            return False
        return isinstance(document, dict) and document.get("format", 1) != 1

    def read_index_faults(self) -> list[FileFault]:
        """The base table's indexes that can't be opened, or have lost files."""
        found = find_index_faults(self.objects, self.tables.seen(self.view.version))
        return [FileFault(path=path, problem=text, name=name) for name, path, text in found]

    @cached_property
    def base_faults(self) -> list[FileFault]:
        """The base's files that are gone, or not as the viewed version or a checkpoint's has them.

        Data files have to be as long as they were, deletion files to have as many rows.
        """
        bases, faults = [self.tables.seen(self.view.version)], []
        for kept in self.checkpoints[0]:
            try:
                bases.append(self.tables.base(kept.version))
            except (Missing, Corruption) as error:
                path = _path_of(kept.version)
                what = "is gone" if isinstance(error, Missing) else "can't be read"
                text = f"{what}: version {kept.version} is that of checkpoint {kept.name!r}"
                faults.append(FileFault(path=path, problem=text))
        sizes = {file.path: file.size_bytes for file in self.objects.list("data")}
        for path, size, what in dict.fromkeys(chain(*map(list_data_files, bases))):
            found = sizes.get(path)
            if found is None and not self.objects.exists(path):
                faults.append(FileFault(path=path, problem=f"is gone ({what})"))
            elif found is not None and size not in (None, found):
                text = f"has {found} bytes, the table's manifest says {size} ({what})"
                faults.append(FileFault(path=path, problem=text))
        deleting = {path: fragment for base in bases for path, fragment in list_deletions(base)}
        found_there = side_by_side(find_fault, list(deleting.values()), _READERS_MAX)
        damaged = {fault.path for fault in faults}
        for (path, fragment), problem in zip(deleting.items(), found_there, strict=True):
            known = any(f"data/{file.path}" in damaged for file in fragment.metadata.files)
            if problem is not None and not known:
                faults.append(FileFault(path=path, problem=problem))
        return faults

    def list_parts(self) -> list[Part]:
        """All that a deep look reads: base, listed generations, indexes. Raises as opening them."""
        base = self.tables.seen(self.view.version)
        parts = [*list_fragments(base), *list_index_files(self.objects, self.tables, base)]
        for shard_id, generation in _list_listed(self.view):
            path = layout.generation_folder(shard_id, generation.path, generation.generation)
            with suppress(Missing, Corruption):  # which the other checks report
                dataset = self.generations.open_dataset(shard_id, generation)
                parts += list_fragments(dataset, f"{path}/")
        return parts

    def read_parts(self, parts: Sequence[Part], progress: Progress) -> list[FileFault]:
        """Read all of these parts; what is wrong with any."""
        faults, read = [], 0
        progress.start("pages", len(parts), sum(part.size_bytes for part in parts))
        for first in range(0, len(parts), _DEEP_READERS_MAX):
            some = parts[first : first + _DEEP_READERS_MAX]
            found = side_by_side(lambda part: part.find_fault(), some, _DEEP_READERS_MAX)
            faults += [
                FileFault(path=part.path, problem=problem)
                for part, problem in zip(some, found, strict=True)
                if problem is not None
            ]
            read += sum(part.size_bytes for part in some)
            progress.done(first + len(some), read)
        return faults

    @cached_property
    def folders(self) -> tuple[dict[ShardId, set[str]], set[str]]:
        """The names in each shard's folder, and the foreign ones below `_mem_wal/`.

        Files that an operating system or an editor left are left out: nothing reads them.
        """
        inside: dict[ShardId, set[str]] = {shard.shard_id: set() for shard in self.view.shards}
        foreign = set[str]()
        for info in self.objects.list(layout.MEM_WAL):
            if layout.is_litter(info.path.rsplit("/", 1)[-1]):
                continue
            name, _, rest = info.path.removeprefix(f"{layout.MEM_WAL}/").partition("/")
            if layout.is_shard_folder(name):
                inside.setdefault(ShardId(name), set()).add(rest.partition("/")[0])
            else:
                foreign.add(name)
        return inside, foreign

    def find_foreign_shards(self) -> list[str]:
        """An error text for each shard whose pending generations predate the MemWAL index.

        Raises Corruption if such a generation is gone.
        """
        problems, view = [], self.view
        self.views.lineage(view, view.shards)
        for shard in view.shards:
            try:
                if shard.pending and not shard.merged_generation:
                    flushed_at = self.views.flushed_at_nanos(shard.shard_id, shard.pending[0])
                    since = self.views.mem_wal_since_nanos(view, flushed_at)
                    check_lineage(shard, flushed_at, since)
            except Missing as missing:
                raise Corruption("MW-H03", f"shard {shard.shard_id}: {missing}") from None
            except Refused as error:
                problems.append(str(error))
        return problems


def _list_pending(view: TableView) -> list[tuple[ShardId, FlushedGeneration]]:
    return [(s.shard_id, g) for s in view.shards for g in s.pending]


def _list_listed(view: TableView) -> list[tuple[ShardId, FlushedGeneration]]:
    return [(s.shard_id, g) for s in view.shards for g in s.manifest.flushed_generations]


def has_movers(view: TableView) -> bool:
    """Whether a row's shard depends on a column outside the primary key."""
    key = {c.field_id for c in view.columns if c.name in view.primary_key}
    fields = (f for spec in view.mem_wal.shard_specs for f in spec.fields)
    return any(f.expression or not {*f.source_ids} <= key for f in fields)


def read_generation(
    generations: Generations, shard_id: ShardId, generation: FlushedGeneration
) -> GenerationFacts:
    """Whether a listed generation opens, and how many rows it physically has.

    Raises StoreUnavailable: that says nothing about what is stored.
    """
    rows, error = None, None
    try:
        fragments = generations.open_dataset(shard_id, generation).get_fragments()
        rows = sum(int(fragment.physical_rows) for fragment in fragments)
        error = next(filter(None, map(find_fault, fragments)), None)
    except (StoreUnavailable, BadCredentials):
        raise
    except MemWalError as caught:
        error = str(caught)
    except (OSError, ValueError) as caught:
        error = tidy_text(caught)
    return GenerationFacts(
        shard_id=shard_id,
        generation=generation.generation,
        claimed_rows=generation.physical_rows,
        physical_rows=rows,
        error=error,
    )


def read_private_index(
    generations: Generations, shard_id: ShardId, generation: FlushedGeneration
) -> PrivateIndexFacts:
    """Count the rows in a generation's private key index, by metadata only."""
    rows = None
    if generation.physical_rows is not None:
        with suppress(MemWalError):
            rows = _count_indexed_rows(generations, shard_id, generation)
    return PrivateIndexFacts(
        shard_id=shard_id,
        generation=generation.generation,
        physical_rows=generation.physical_rows,
        indexed_rows=rows,
    )


def _path_of(version: int) -> str:
    return f"{layout.VERSIONS}/{layout.table_manifest_names(version)[0]}"


def _count_indexed_rows(
    generations: Generations, shard_id: ShardId, generation: FlushedGeneration
) -> int | None:
    path = layout.private_index_path(shard_id, generation.path, generation.generation)
    try:
        check_data_file(*generations.objects.get_tail(path, DATA_FOOTER_BYTES))
    except Missing:
        generations.tables.generation(shard_id, generation)  # raises when all of it is gone
        return 0
    return generations.tables.file_rows(path)


def read_highest_fragment(tables: LanceTables, version: int) -> int | None:
    """The highest fragment id of a version; None if it has no fragment or can't be opened."""
    try:
        ids = [fragment.fragment_id for fragment in tables.base(version).get_fragments()]
    except MemWalError:
        return None
    return max(ids, default=None)


def read_uncovered_fragments(tables: LanceTables, version: int) -> dict[str, tuple[int, ...]]:
    """For each index, the fragments of the version that none of its segments covers."""
    base = tables.base(version)
    live = {fragment.fragment_id for fragment in base.get_fragments()}
    covered: dict[str, set[int]] = {}
    for segment in base.list_indices():
        covered.setdefault(segment["name"], set()).update(segment["fragment_ids"])
    return {name: tuple(sorted(live - ids)) for name, ids in covered.items()}
