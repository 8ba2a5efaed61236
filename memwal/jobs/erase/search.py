"""Looks for the keys of an erasure in every object below a table.

The listing is the measure: each object in it gets a sighting. Of files with rows the key columns
are read, those of rows that a version hides included; memory holds a batch of them at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from memwal.errors import Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.jobs.erase.keys import Keys
from memwal.jobs.erase.plan import (
    DETACHED,
    DETACHED_TEXT,
    By,
    ObjectKind,
    Pin,
    SearchResult,
    Sighting,
    begin_sighting,
)
from memwal.jobs.garbage.model import RetainedVersion
from memwal.jobs.garbage.store.versions import RetainedVersions
from memwal.model import ShardId, StoredFile, TableView
from memwal.ports import TABLE_MANIFEST_BYTES_MAX
from memwal.run.stores import Stores
from memwal.sharding.spec import Transform, encode_value
from memwal.store.tables.indexes import describe_indexes
from memwal.store.tables.lance_calls import call_lance
from memwal.text import count_of
from memwal.threads import side_by_side

_READERS_MAX = 8
_WORDS = {"tags": "tag", "branches": "branch"}
_TORN = "can't be read: torn, or of an unknown kind. Move it away if nobody needs it"


class _NoKey(MemWalError):
    """A data file has further columns of rows whose keys are in another one."""


@dataclass(kw_only=True)
class _Known:
    """What is known of a table's objects before each is looked at.

    `hits` counts the rows with a key by data file, of the base and of generations, and `groups` by
    the folder of a generation. `named` has by path the oldest and the newest retained version that
    names it, and what keeps one that does; `pinned` has that by version. `shown` counts by folder
    the rows that are in files of another table. `shards` are named after a key.
    """

    hits: dict[str, int | MemWalError]
    groups: Mapping[str, int]
    pinned: Mapping[int, Sequence[str]]
    shards: Set[str] = frozenset()
    named: dict[str, tuple[int, int, frozenset[str]]] = field(default_factory=dict)
    held_at: set[int] = field(default_factory=set)
    fragments: list[int] = field(default_factory=list)
    shown: dict[str, int] = field(default_factory=dict)

    def name(self, path: str, version: int) -> None:
        oldest, newest, pins = self.named.get(path, (version, version, frozenset()))
        pins = pins.union(self.pinned.get(version, ()))
        self.named[path] = min(oldest, version), max(newest, version), pins

    def add_names(self, seen: Sighting, path: str) -> Sighting:
        oldest, newest, pins = self.named.get(path, (0, 0, frozenset()))
        return replace(seen, oldest=oldest, newest=newest, pins=tuple(sorted(pins)))


@dataclass(frozen=True, kw_only=True)
class TableSearch:
    """Searches one table for keys. `backups` is where its backups go, as far as is known."""

    stores: Stores
    keys: Keys
    backups: str | None = None

    def look(self, view: TableView) -> SearchResult:
        """Look at every object that is below the table now. Raises MemWalError."""
        files = list(self.stores.objects.list(""))
        paths = [file.path for file in files if is_data(file.path)]
        counted = side_by_side(self._count_data, paths, _READERS_MAX)
        hits = dict(zip(paths, counted, strict=True))
        retained = RetainedVersions(self.stores.objects)
        with ThreadPoolExecutor(_READERS_MAX) as pool:
            found, problems = retained.read(pool, verified=True)
        versions = [version for version in found if version.on_main]
        pinned: dict[int, list[str]] = {DETACHED: [DETACHED_TEXT]}
        references = list(self._read_references(retained))
        for kind, name, number in references:
            pinned.setdefault(number, []).append(f"{kind} {name!r}")
        shards = self._find_named_shards(view)
        known = _Known(hits=hits, groups=_add_up(hits), pinned=pinned, shards=shards)
        self._follow(versions, known, view.version)
        dataset = self.stores.tables.base(view.version)
        indexes = call_lance(lambda: describe_indexes(dataset))
        seen = side_by_side(partial(self._see, known), files, _READERS_MAX)
        return SearchResult(
            version=view.version,
            sightings=tuple(one for one in seen if one is not None),
            versions={
                v.version: v.timestamp_nanos for v in versions if not layout.is_detached(v.version)
            },
            index_names={str(part.uuid): i.name for i in indexes for part in i.segments},
            pins=tuple(self._find_pins(references, known)),
            fragments=tuple(known.fragments),
            rows_outside=known.shown,
            elsewhere=tuple(self._name_elsewhere(files, view, known.shown)),
            problems=tuple(map(str, problems)),
        )

    def hides_rows(self, version: int) -> bool:
        """Whether files of which a version hides rows have rows with a key."""
        parts = call_lance(self.stores.tables.at(version).get_fragments)
        files = [f for p in parts if p.metadata.deletion_file is not None for f in p.data_files()]
        # What lies outside has no byte below this table.
        counted = [self._count_data(f"data/{f.path}") for f in files if f.base_id is None]
        for error in counted:
            if isinstance(error, MemWalError) and not isinstance(error, _NoKey):
                raise error  # nobody knows what it hides
        return any(rows for rows in counted if isinstance(rows, int))

    # ---- files with rows

    def _count_data(self, path: str) -> int | MemWalError:
        """Rows with a key in a data file; _NoKey where it lacks a column of the key."""
        tables = self.stores.tables
        try:
            there = tables.file_columns(path)
            if missing := [name for name in self.keys.names if name not in there]:
                return _NoKey(f"has no column {missing[0]}, and no version says whose it is")
            return self.keys.count_in(tables.file_batches(path, self.keys.names))
        except MemWalError as error:
            return error

    def _follow(self, versions: Sequence[RetainedVersion], known: _Known, latest: int) -> None:
        """Note what each retained version of main names, and which of them hold the keys.

        A file without the key's columns has further columns of its fragment's rows: it holds what
        the fragment's file with the key does. Of files that lie outside, only the rows that a
        version shows count; they are read once for each state of a fragment.
        """
        read: dict[tuple[str, ...], int] = {}
        for version in versions:
            number = DETACHED if layout.is_detached(version.version) else version.version
            for uuid in version.index_uuids:
                known.name(uuid, number)
            try:
                dataset = self.stores.tables.base(version.version)
                parts = call_lance(dataset.get_fragments)
            except Missing:
                continue  # expired since it was listed
            shown: Counter[str] = Counter()
            for part in parts:
                paths = [f"data/{f.path}" for f in part.data_files() if f.base_id is None]
                counted = [known.hits.get(path) for path in paths]
                if outside := [f for f in part.data_files() if f.base_id is not None]:
                    state = (*(f.path for f in outside), str(part.metadata.deletion_file))
                    if state not in read:
                        read[state] = self._count_shown(dataset, part)
                    counted.append(read[state])
                    shown[dataset.base_paths()[outside[0].base_id].path] += read[state]
                rows = max((n for n in counted if isinstance(n, int)), default=None)
                for path in paths:
                    known.name(path, number)
                    if rows is not None and isinstance(known.hits.get(path), _NoKey):
                        known.hits[path] = rows
                if rows:
                    known.held_at.add(version.version)
                    if version.version == latest:
                        known.fragments.append(part.fragment_id)
            known.shown.update({f: max(n, known.shown.get(f, 0)) for f, n in shown.items() if n})

    def _count_shown(self, dataset: Any, part: Any) -> int:
        batches = dataset.scanner(columns=list(self.keys.names), fragments=[part]).to_batches()
        return call_lance(lambda: self.keys.count_in(batches))

    def _find_named_shards(self, view: TableView) -> set[str]:
        """Shards that are named after a key: of a spec that takes the key itself as the value."""
        fields = {
            f.field_id
            for spec in view.mem_wal.shard_specs
            for f in spec.fields
            if f.transform == Transform.IDENTITY and len(self.keys.names) == 1
        }
        known = {encode_value(value) for value in self.keys.table.column(0)} if fields else set()
        return {
            str(shard.shard_id)
            for shard in view.shards
            for name, value in shard.manifest.shard_field_entries
            if name in fields and value in known
        }

    # ---- one object

    def _see(self, known: _Known, file: StoredFile) -> Sighting | None:
        seen = begin_sighting(file)
        try:
            return self._look_at(seen, known)
        except Missing:
            return None  # deleted since it was listed
        except (MemWalError, KeyError, pa.ArrowException) as error:
            return replace(seen, how=f"can't be read: {error}")

    def _look_at(self, seen: Sighting, known: _Known) -> Sighting:
        path, get = seen.path, self.stores.objects.get
        match seen.kind:
            case ObjectKind.DATA:
                owner = f"data/{path.split('/')[1].removesuffix('.lance')}.lance"
                owner = path if path in known.hits else owner
                seen, rows = known.add_names(seen, owner), known.hits.get(owner)
                if isinstance(rows, MemWalError):
                    raise rows
                how = "belongs to no data file that is there" if rows is None else seen.how
                return replace(seen, rows=rows, how=how)
            case ObjectKind.GENERATION:  # its indexes and lists of keys hold what its rows hold
                if isinstance(error := known.hits.get(path), MemWalError):
                    raise error
                how = "its generation's keys were read"
                return replace(seen, rows=known.groups.get(str(seen.group), 0), how=how)
            case ObjectKind.STAGED:
                self.stores.objects.get_tail(path, 1)  # Missing, where it is in its place by now
            case ObjectKind.WAL_ENTRY:
                found = self.stores.wal.rows(ShardId(str(seen.shard_id)), seen.number)
                return replace(
                    seen,
                    rows=self.keys.count_in(b for b in found.batches if b.num_rows),
                    generation=found.entry.generation,
                    writer_epoch=found.entry.writer_epoch,
                )
            case ObjectKind.INDEX:
                return known.add_names(seen, str(seen.group))
        match seen.kind.by:
            case By.TEXTS:
                data = get(path, TABLE_MANIFEST_BYTES_MAX)
                return replace(seen, rows=self.keys.count_in_texts(data))
            case By.ERRORS:
                rows = self.keys.count_in_documents(get(path), own=True)
                return replace(seen, rows=rows)
            case By.SHARD:
                return replace(seen, rows=int(path.split("/")[1] in known.shards))
            case By.NUMBERS | By.OWN:
                return replace(seen, rows=0)
            case By.FILE:
                rows = self._count_file(path)
                return replace(seen, rows=rows, how=_TORN if rows is None else seen.how)
        return seen

    def _count_file(self, path: str) -> int | None:
        """Rows or texts with a key in a file by its name; None where it can't be told."""
        names, tables = self.keys.names, self.stores.tables
        try:
            if path.endswith(".lance"):
                return self.keys.count_in(tables.file_batches(path, names))
            data = self.stores.objects.get(path)
            if path.endswith(".arrow"):
                return self.keys.count_in(pa.ipc.open_stream(data).read_all().to_batches())
        except Missing:
            raise
        except (KeyError, pa.ArrowException, OSError, MemWalError):
            return None
        return self.keys.count_in_documents(data) if path.endswith((".json", ".jsonl")) else None

    # ---- what keeps versions, and what lies elsewhere

    def _read_references(self, found: RetainedVersions) -> Iterator[tuple[str, str, int]]:
        """The tags and branches of main: kind, name and version."""
        for path, version in found.list_references():
            if version is None:
                where = f"{self.stores.uri}: {path}"
                raise Corruption("MW-G07", f"{where} can't be read as a reference")
            _, kind, file = path.split("/", 2)
            yield _WORDS[kind], unquote(file.removesuffix(".json")), version

    def _find_pins(
        self, references: Sequence[tuple[str, str, int]], known: _Known
    ) -> Iterator[Pin]:
        ours = layout.checkpoint_tag("")
        for kind, name, version in references:
            if kind == "tag" and version in known.held_at and not name.startswith(ours):
                yield Pin(tag=name, version=version)
        for found in self.stores.checkpoints.list():
            pending = [
                (layout.shard_folder(s.shard_id), g) for s in found.shards for g in s.pending
            ]
            folders = {f"{folder}/{generation.path}" for folder, generation in pending}
            if found.version in known.held_at or folders & known.groups.keys():
                yield Pin(tag=f"{ours}{found.key}", version=found.version, checkpoint=found)

    def _name_elsewhere(
        self, files: Sequence[StoredFile], view: TableView, outside: Mapping[str, int]
    ) -> Iterator[str]:
        """What belongs to the table or was made of it, and is not below it."""
        for base in self.stores.tables.base(view.version).base_paths().values():
            rows = outside.get(base.path, 0)
            holds = f" have {count_of(rows, 'row')} with an erased key: erase there" if rows else ""
            yield f"{base.path}: files of the table that lie outside its folder{holds}"
        branches = (f.path.partition("/_versions/") for f in files if f.path.startswith("tree/"))
        yield from (f"{name}: a branch" for name in sorted({b[0] for b in branches if b[1]}))
        if self.backups is not None:
            yield f"{self.backups}: backups of the table"
        yield "clones, backups and exports of the table: what was copied is not known here"


def is_data(path: str) -> bool:
    """Whether an object has the rows of the base, or of a generation."""
    match path.split("/"):
        case ["data", name]:
            return name.endswith(".lance")
        case [layout.MEM_WAL, _, folder, "data", name]:
            return layout.parse_generation_folder(folder) is not None and name.endswith(".lance")
    return False


def _add_up(hits: Mapping[str, int | MemWalError]) -> Counter[str]:
    """The rows with a key by the folder of the generation, where there are any."""
    groups: Counter[str] = Counter()
    for path, rows in hits.items():
        if isinstance(rows, int) and rows:
            groups[path.rpartition("/data/")[0]] += rows
    return groups
