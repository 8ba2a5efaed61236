"""Looks for the keys of an erasure in every object below a table.

The listing is the measure: each object in it gets a sighting. Of files with rows the key columns
are read, those of rows that a version hides included; memory holds a batch of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from memwal.errors import Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.jobs.erase.keys import Keys
from memwal.jobs.erase.plan import By, ObjectKind, Pin, SearchResult, Sighting, find_kind
from memwal.jobs.garbage.model import RetainedVersion
from memwal.jobs.garbage.store.versions import RetainedVersions
from memwal.model import Checkpoint, ShardId, StoredFile, TableView
from memwal.ports import OBJECT_BYTES_MAX, TABLE_MANIFEST_BYTES_MAX
from memwal.run.stores import Stores
from memwal.sharding.spec import Transform, encode_value
from memwal.store.tables.indexes import describe_indexes, index_kind
from memwal.store.tables.lance_calls import call_lance
from memwal.text import count_of
from memwal.threads import side_by_side

_READERS_MAX = 8
_DETACHED = "a detached version"
_WORDS = {"tags": "tag", "branches": "branch"}
# Where the two kinds of index whose values are read keep them.
_VALUES = {"BTREE": ("page_data.lance", "values"), "BITMAP": ("bitmap_page_lookup.lance", "keys")}


class _NoKey(MemWalError):
    """A data file has further columns of rows whose keys are in another one."""


@dataclass(kw_only=True)
class _Known:
    """What is known of a table's objects before each is looked at.

    `hits` counts the rows with a key by data file, of the base and of generations; `index_rows` the
    values by the folder of an index, where those are read. What retained versions name has, by
    path, the newest and the oldest version, and the pins that keep one. `shards` are named after a
    key.
    """

    hits: dict[str, int | MemWalError]
    shards: Set[str] = frozenset()
    index_names: dict[str, str] = field(default_factory=dict)
    index_rows: dict[str, int] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    oldest: dict[str, int] = field(default_factory=dict)
    pins: dict[str, set[str]] = field(default_factory=dict)
    held_at: set[int] = field(default_factory=set)
    fragments: list[int] = field(default_factory=list)

    def name(self, path: str, version: int, pins: Sequence[str]) -> None:
        self.newest[path] = max(version, self.newest.get(path, 0))
        self.oldest[path] = min(version, self.oldest.get(path, version))
        self.pins.setdefault(path, set()).update(pins)

    def add_names(self, made: Sighting, path: str) -> Sighting:
        pins = tuple(sorted(self.pins.get(path, ())))
        newest, oldest = self.newest.get(path, 0), self.oldest.get(path, 0)
        return replace(made, newest=newest, oldest=oldest, pins=pins)


@dataclass(frozen=True, kw_only=True)
class TableSearch:
    """Searches one table for keys. `backups` is where its backups go, as far as is known."""

    stores: Stores
    keys: Keys
    backups: str | None = None

    def look(self, view: TableView) -> SearchResult:
        """Look at every object that is below the table now. Raises MemWalError."""
        files = list(self.stores.objects.list(""))
        known = _Known(hits=self._read_rows(files), shards=self._find_named_shards(view))
        retained = RetainedVersions(self.stores.objects)
        with ThreadPoolExecutor(_READERS_MAX) as pool:
            versions, problems = retained.read(pool, verified=True)
        pinned, tags = self._read_pins(retained)
        outside = _Outside(stores=self.stores, keys=self.keys)
        self._follow([v for v in versions if v.on_main], pinned, known, view.version, outside)
        self._read_indexes(view.version, known)
        seen = side_by_side(lambda file: self._see(file, known), files, _READERS_MAX)
        found = [s for s in seen if s is not None]
        groups: dict[str | None, int] = {}
        for one in found:
            if one.kind is ObjectKind.GENERATION and one.rows:
                groups[one.group] = groups.get(one.group, 0) + one.rows
        checkpoints = self.stores.checkpoints.list()
        rows_outside = outside.count_by_folder()
        return SearchResult(
            version=view.version,
            sightings=tuple(_share_group(s, groups) for s in found),
            versions={
                v.version: v.timestamp_nanos
                for v in versions
                if v.on_main and not layout.is_detached(v.version)
            },
            index_names=known.index_names,
            pins=tuple(_find_pins(tags, checkpoints, known.held_at, groups)),
            fragments=tuple(known.fragments),
            rows_outside=rows_outside,
            elsewhere=tuple(self._name_elsewhere(files, view, rows_outside)),
            problems=tuple(map(str, problems)),
        )

    def hidden_rows(self, version: int) -> int:
        """Rows with a key that are in a version's files, and that the version hides."""
        dataset = self.stores.tables.at(version)
        found = 0
        for fragment in call_lance(dataset.get_fragments):
            for file in fragment.data_files():
                if file.base_id is not None:
                    continue  # no byte of it is below this table
                path = f"data/{file.path}"
                stored = self._count_data(path)
                if isinstance(stored, MemWalError) and not isinstance(stored, _NoKey):
                    raise stored  # nobody knows what it hides
                if stored and isinstance(stored, int):
                    columns = list(self.keys.names)
                    batches = dataset.scanner(columns=columns, fragments=[fragment]).to_batches()
                    found += stored - self.keys.count_in(batches)
        return found

    # ---- files with rows

    def _read_rows(self, files: Sequence[StoredFile]) -> dict[str, int | MemWalError]:
        """Rows with a key, by the path of each data file, of the base and of generations."""
        paths = [f.path for f in files if is_data(f.path)]
        counted = side_by_side(self._count_data, paths, _READERS_MAX)
        return dict(zip(paths, counted, strict=True))

    def _count_data(self, path: str) -> int | MemWalError:
        """Rows with a key in a data file; _NoKey where it lacks a column of the key."""
        tables = self.stores.tables
        try:
            there = tables.file_columns(path)
            if missing := [name for name in self.keys.names if name not in there]:
                return _NoKey(
                    f"has no column {', '.join(missing)}, and no version says whose it is"
                )
            return self.keys.count_in(tables.file_batches(path, self.keys.names))
        except MemWalError as error:
            return error

    def _follow(
        self,
        versions: Sequence[RetainedVersion],
        pinned: Mapping[int, Sequence[str]],
        known: _Known,
        latest: int,
        outside: _Outside,
    ) -> None:
        """Note what each retained version of main names, and which of them hold the keys.

        A file without the key's columns has further columns of its fragment's rows: it holds what
        the fragment's file with the key does.
        """
        hits = known.hits
        for version in versions:
            # A detached version has a number beyond all others', and no cleanup expires it.
            detached = layout.is_detached(version.version)
            pins = [_DETACHED] if detached else pinned.get(version.version, [])
            number = 0 if detached else version.version
            for uuid in version.index_uuids:
                known.name(uuid, number, pins)
            try:
                parts = call_lance(self.stores.tables.base(version.version).get_fragments)
            except Missing:
                continue  # expired since it was listed
            for part in parts:
                paths = [f"data/{f.path}" for f in part.data_files() if f.base_id is None]
                counted = [*map(hits.get, paths), *outside.count(version.version, part)]
                rows = max((n for n in counted if isinstance(n, int)), default=None)
                for path in paths:
                    known.name(path, number, pins)
                    if rows is not None and isinstance(hits.get(path), _NoKey):
                        hits[path] = rows
                if rows:
                    known.held_at.add(version.version)
                    if version.version == latest:
                        known.fragments.append(part.fragment_id)

    def _read_indexes(self, version: int, known: _Known) -> None:
        """Note the latest version's indexes by folder, and the values where those are read."""
        dataset = self.stores.tables.base(version)
        for index in call_lance(lambda: describe_indexes(dataset)):
            file, column = _VALUES.get(index_kind(index), ("", ""))
            for segment in index.segments:
                uuid = str(segment.uuid)
                known.index_names[uuid] = index.name
                if file and tuple(index.field_names) == self.keys.names:
                    path = f"_indices/{uuid}/{file}"
                    batches = self.stores.tables.file_batches(path, [column])
                    try:
                        values = (b.column(0) for b in batches)
                        known.index_rows[uuid] = self.keys.count_values(values)
                    except (MemWalError, pa.ArrowException):
                        continue  # judged by when it was built

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

    def _see(self, file: StoredFile, known: _Known) -> Sighting | None:
        kind = find_kind(file.path)
        made = Sighting(
            path=file.path,
            kind=kind,
            rows=None,
            how=kind.by,
            size_bytes=file.size_bytes,
            modified_at_nanos=file.modified_at_nanos,
        )
        try:
            return self._look_at(made, known)
        except Missing:
            return None  # deleted since it was listed
        except (MemWalError, KeyError, pa.ArrowException) as error:
            return replace(made, how=f"can't be read: {error}")

    def _look_at(self, made: Sighting, known: _Known) -> Sighting:
        path, get = made.path, self.stores.objects.get
        parts = path.split("/")
        if made.kind in (ObjectKind.GENERATION, ObjectKind.WAL_ENTRY):
            made = replace(made, shard_id=ShardId(parts[1]))
        match made.kind:
            case ObjectKind.DATA:
                owner = f"data/{parts[1].removesuffix('.lance')}.lance"
                made = known.add_names(made, path if path in known.hits else owner)
                return _count_hits(made, known.hits.get(path, known.hits.get(owner)))
            case ObjectKind.GENERATION:
                number = layout.parse_generation_folder(parts[2]) or 0
                made = replace(made, group="/".join(parts[:3]), number=number)
                return _count_hits(made, known.hits.get(path))
            case ObjectKind.STAGED:
                self.stores.objects.get_tail(path, 1)  # Missing, where it is in its place by now
                return made
            case ObjectKind.WAL_ENTRY:
                return self._see_entry(made, layout.parse_wal_entry_name(parts[3]) or 0)
            case ObjectKind.INDEX:
                rows, made = known.index_rows.get(parts[1]), known.add_names(made, parts[1])
                how = made.how if rows is None else "its values were read"
                return replace(made, group=parts[1], rows=rows, how=how)
            case ObjectKind.VERSION:
                version = layout.parse_table_manifest_name(parts[1]) or 0
                if layout.is_detached(version):
                    made, version = replace(made, pins=(_DETACHED,)), 0
                made = replace(made, newest=version)
            case ObjectKind.TRANSACTION:
                read = parts[1].partition("-")[0]
                made = replace(made, newest=int(read) + 1 if read.isdigit() else 0)
        match made.kind.by:
            case By.TEXTS:
                most = (
                    TABLE_MANIFEST_BYTES_MAX
                    if made.kind is ObjectKind.VERSION
                    else OBJECT_BYTES_MAX
                )
                return replace(made, rows=self.keys.count_in_texts(get(path, most)))
            case By.ERRORS:
                return replace(made, rows=self.keys.count_in_errors(get(path)))
            case By.SHARD:
                return replace(made, rows=int(parts[1] in known.shards))
            case By.NUMBERS | By.OWN:
                return replace(made, rows=0)
            case By.FILE:
                rows = self._count_file(path, get(path))
                torn = "can't be read: torn, or of an unknown kind. Move it away if nobody needs it"
                return replace(made, rows=rows, how=torn if rows is None else made.how)
        return made

    def _see_entry(self, made: Sighting, position: int) -> Sighting:
        made = replace(made, number=position)
        try:
            entry = self.stores.wal.rows(ShardId(str(made.shard_id)), position)
        except Missing:
            raise
        except MemWalError as error:
            return replace(made, how=f"can't be read: {error}")
        return replace(
            made,
            rows=self.keys.count_in(b for b in entry.batches if b.num_rows),
            generation=entry.entry.generation,
            writer_epoch=entry.entry.writer_epoch,
        )

    def _count_file(self, path: str, data: bytes) -> int | None:
        """Rows or texts with a key in a file by its name; None where it can't be told."""
        names = list(self.keys.names)
        try:
            if path.endswith(".lance"):
                return self.keys.count_in(self.stores.tables.file_batches(path, names))
            if path.endswith((".parquet", ".arrow")):
                return self.keys.count_in(_open_file(data, names))
        except (KeyError, pa.ArrowException, OSError, MemWalError):
            return None
        return self.keys.count_in_documents(data) if path.endswith((".json", ".jsonl")) else None

    # ---- what keeps versions, and what lies elsewhere

    def _read_pins(self, found: RetainedVersions) -> tuple[dict[int, list[str]], dict[str, int]]:
        """By version of main, the tags and branches that keep it; and the tags alone."""
        pinned: dict[int, list[str]] = {}
        tags: dict[str, int] = {}
        for path, version in found.list_references():
            if version is None:
                raise Corruption(
                    "MW-G07", f"{self.stores.uri}: {path} can't be read as a reference"
                )
            _, kind, file = path.split("/", 2)
            name = unquote(file.removesuffix(".json"))
            pinned.setdefault(version, []).append(f"{_WORDS[kind]} {name!r}")
            if kind == "tags":
                tags[name] = version
        return pinned, tags

    def _name_elsewhere(
        self, files: Sequence[StoredFile], view: TableView, outside: Mapping[str, int]
    ) -> Iterator[str]:
        """What belongs to the table or was made of it, and is not below it."""
        for base in self.stores.tables.base(view.version).base_paths().values():
            rows = outside.get(base.path, 0)
            holds = f" have {count_of(rows, 'row')} with an erased key: erase there" if rows else ""
            yield f"{base.path}: files of the table that lie outside its folder{holds}"
        for branch in sorted({f.path.split("/_versions/")[0] for f in files if _is_branch(f.path)}):
            yield f"{branch}: a branch"
        if self.backups is not None:
            yield f"{self.backups}: backups of the table"
        yield "clones, backups and exports of the table: what was copied is not known here"


@dataclass(frozen=True)
class _Outside:
    """Rows of a clone or branch in its parent's files, read once for each state of a fragment."""

    stores: Stores
    keys: Keys
    found: dict[tuple[str, ...], tuple[str, int]] = field(default_factory=dict)

    def count(self, version: int, fragment: Any) -> list[int]:
        """How many rows with a key the version shows of it; empty where no file is outside."""
        outside = [f for f in fragment.data_files() if f.base_id is not None]
        if not outside:
            return []
        state = (*(f.path for f in outside), str(fragment.metadata.deletion_file))
        if state not in self.found:
            dataset = self.stores.tables.base(version)
            base = dataset.base_paths()[outside[0].base_id]
            columns = list(self.keys.names)
            batches = dataset.scanner(columns=columns, fragments=[fragment]).to_batches()
            self.found[state] = base.path, call_lance(lambda: self.keys.count_in(batches))
        return [self.found[state][1]]

    def count_by_folder(self) -> dict[str, int]:
        """The most rows that any version shows, by the other table's folder."""
        most: dict[str, tuple[str, int]] = {}
        for (path, *_), (folder, rows) in self.found.items():
            most[path] = folder, max(rows, most.get(path, ("", 0))[1])
        totals: dict[str, int] = {}
        for folder, rows in most.values():
            totals[folder] = totals.get(folder, 0) + rows
        return {folder: rows for folder, rows in totals.items() if rows}


def is_data(path: str) -> bool:
    """Whether an object has the rows of the base, or of a generation."""
    match path.split("/"):
        case ["data", name]:
            return name.endswith(".lance")
        case [layout.MEM_WAL, _, folder, "data", name]:
            return layout.parse_generation_folder(folder) is not None and name.endswith(".lance")
    return False


def _is_branch(path: str) -> bool:
    return path.startswith(f"{layout.BRANCHES}/") and "/_versions/" in path


def _count_hits(made: Sighting, found: int | MemWalError | None) -> Sighting:
    """A file with rows, or one that belongs to it; the rest of a generation goes by its group."""
    if isinstance(found, Missing):
        raise found
    if isinstance(found, MemWalError):
        return replace(made, how=f"can't be read: {found}")
    if found is not None:
        return replace(made, rows=found)
    if made.kind is ObjectKind.GENERATION:
        return replace(made, rows=0, how="made of its generation's rows, whose keys were read")
    return replace(made, how="belongs to no data file that is there")


def _share_group(seen: Sighting, groups: Mapping[str | None, int]) -> Sighting:
    """Everything in a generation holds what its rows hold: indexes, key lists, filters."""
    if seen.kind is ObjectKind.GENERATION and seen.rows == 0 and seen.group in groups:
        return replace(seen, rows=groups[seen.group], how="of a generation whose keys were read")
    return seen


def _find_pins(
    tags: Mapping[str, int],
    checkpoints: Sequence[Checkpoint],
    held_at: set[int],
    groups: Mapping[str | None, int],
) -> Iterator[Pin]:
    ours = layout.checkpoint_tag("")
    for name, version in sorted(tags.items()):
        if version in held_at and not name.startswith(ours):
            yield Pin(name=name, version=version, tag=name)
    for found in checkpoints:
        folders = {
            f"{layout.shard_folder(s.shard_id)}/{g.path}" for s in found.shards for g in s.pending
        }
        if found.version in held_at or any(folder in groups for folder in folders):
            tag = layout.checkpoint_tag(found.key)
            yield Pin(name=found.name, version=found.version, tag=tag, checkpoint=True)


def _open_file(data: bytes, names: Sequence[str]) -> Iterable[pa.RecordBatch]:
    """The batches of a Parquet file, an Arrow file or an Arrow stream."""
    if data.startswith(b"PAR1"):
        return pq.ParquetFile(BytesIO(data)).iter_batches(columns=names)  # type: ignore[no-any-return]
    opened = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
    return opened(data).read_all().to_batches()  # type: ignore[no-any-return]
