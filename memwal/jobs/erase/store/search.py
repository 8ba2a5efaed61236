"""Looks for the keys of an erasure in every object below a table.

The listing is the measure: each object in it gets a sighting. Of files with rows the key columns
are read, those of rows that a version hides included; memory holds a batch of them at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from memwal.errors import Corruption, MemWalError, Missing, Refused
from memwal.format import layout
from memwal.jobs.erase.plan import Kind, Pin, Sighting
from memwal.jobs.erase.store.keys import Keys
from memwal.jobs.garbage.model import RetainedVersion
from memwal.jobs.garbage.store.versions import RetainedVersions
from memwal.model import Checkpoint, ShardId, StoredFile, TableView
from memwal.ports import OBJECT_BYTES_MAX, TABLE_MANIFEST_BYTES_MAX
from memwal.run.stores import Stores
from memwal.sharding.spec import Transform
from memwal.sharding.values import encode_value
from memwal.store.tables.indexes import describe_indexes, index_kind
from memwal.store.tables.lance_calls import call_lance
from memwal.text import count_of
from memwal.threads import side_by_side

_READERS_MAX = 8
# Where the two kinds of index whose values are read keep them.
_VALUES = {"BTREE": ("page_data.lance", "values"), "BITMAP": ("bitmap_page_lookup.lance", "keys")}
# Documents of memwal's whose every field is its own: they have no room for a row's value.
_OWN = (
    layout.LEASE,
    layout.CHECKPOINTS,
    layout.CURSORS,
    layout.SETTLED,
    layout.ADOPTED,
    layout.RESCUES,
    layout.BACKUPS,
)
_TEXTS = (".json", ".jsonl")
_OWN_FILES = (f"{layout.MAINTENANCE}/snapshot.json", layout.RESERVE)


class _NoKey(MemWalError):
    """A data file has further columns of rows whose keys are in another one."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a search found.

    `fragments` are those of the latest version in whose files a key is, hidden or not.
    `rows_outside` counts by folder the rows with a key that retained versions of a clone or branch
    have in files of another table. `elsewhere` names what may hold the keys and is not below the
    table.
    """

    version: int
    sightings: tuple[Sighting, ...]
    versions: Mapping[int, int]
    index_names: Mapping[str, str]
    pins: tuple[Pin, ...] = ()
    fragments: tuple[int, ...] = ()
    holding_versions: int = 0
    rows_outside: Mapping[str, int] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Names:
    """What retained versions name: by path, the newest and the oldest version, and the pins that
    keep one.
    """

    newest: dict[str, int] = field(default_factory=dict)
    oldest: dict[str, int] = field(default_factory=dict)
    pins: dict[str, set[str]] = field(default_factory=dict)

    def add(self, path: str, version: int, pins: Sequence[str]) -> None:
        self.newest[path] = max(version, self.newest.get(path, 0))
        self.oldest[path] = min(version, self.oldest.get(path, version))
        if pins:
            self.pins.setdefault(path, set()).update(pins)


@dataclass(frozen=True, kw_only=True)
class TableSearch:
    """Searches one table for keys. `backups` is where its backups go, as far as is known."""

    stores: Stores
    keys: Keys
    backups: str | None = None

    def look(self, view: TableView) -> Look:
        """Look at every object that is below the table now. Raises MemWalError."""
        files = list(self.stores.objects.list(""))
        hits = self._read_rows(files)
        pool = ThreadPoolExecutor(_READERS_MAX)
        with pool:
            versions, problems = RetainedVersions(self.stores.objects).read(pool, verified=True)
        pinned, tags = self._read_pins()
        outside = _Outside(self.stores, self.keys)
        names, holding, fragments, held_at = self._follow(
            versions, pinned, hits, view.version, outside
        )
        index_names, index_rows = self._read_indexes(view.version)
        shards = self._find_named_shards(view)
        seen = side_by_side(
            lambda file: self._see(file, hits, names, index_rows, shards), files, _READERS_MAX
        )
        checkpoints = self.stores.checkpoints.list()
        found = tuple(s for s in seen if s is not None)
        groups: dict[str | None, int] = {}
        for one in found:
            if one.kind is Kind.GENERATION and one.rows:
                groups[one.group] = groups.get(one.group, 0) + one.rows
        return Look(
            version=view.version,
            sightings=tuple(_share_group(s, groups) for s in found),
            versions={
                v.version: v.timestamp_nanos
                for v in versions
                if v.on_main and not layout.is_detached(v.version)
            },
            index_names=index_names,
            pins=tuple(_find_pins(tags, checkpoints, held_at, groups)),
            fragments=fragments,
            holding_versions=holding,
            rows_outside=outside.count_by_folder(),
            elsewhere=tuple(self._name_elsewhere(files, view, outside.count_by_folder())),
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
        paths = [f.path for f in files if _is_data(f.path)]
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
        hits: dict[str, int | MemWalError],
        latest: int,
        outside: _Outside,
    ) -> tuple[_Names, int, tuple[int, ...], set[int]]:
        """What each retained version of main names, and which of them hold the keys.

        A file without the key's columns has further columns of its fragment's rows: it holds what
        the fragment's file with the key does.
        """
        names, held_at, fragments = _Names(), set[int](), list[int]()
        for version in versions:
            if not version.on_main:
                continue
            # A detached version has a number beyond all others', and no cleanup expires it.
            detached = layout.is_detached(version.version)
            pins = ["a detached version"] if detached else pinned.get(version.version, [])
            number = 0 if detached else version.version
            for uuid in version.index_uuids:
                names.add(uuid, number, pins)
            try:
                parts = call_lance(self.stores.tables.base(version.version).get_fragments)
            except Missing:
                continue  # expired since it was listed
            for part in parts:
                paths = [f"data/{f.path}" for f in part.data_files() if f.base_id is None]
                known = [hits[p] for p in paths if isinstance(hits.get(p), int)]
                known += outside.count(version.version, part)
                rows = max((n for n in known if isinstance(n, int)), default=None)
                for path in paths:
                    names.add(path, number, pins)
                    if rows is not None and isinstance(hits.get(path), _NoKey):
                        hits[path] = rows
                if rows:
                    held_at.add(version.version)
                    if version.version == latest:
                        fragments.append(part.fragment_id)
        return names, len(held_at), tuple(fragments), held_at

    def _read_indexes(self, version: int) -> tuple[dict[str, str], dict[str, int]]:
        """Names of the latest version's indexes by folder; rows with a key where those are read."""
        dataset = self.stores.tables.base(version)
        names: dict[str, str] = {}
        rows: dict[str, int] = {}
        for index in call_lance(lambda: describe_indexes(dataset)):
            file, column = _VALUES.get(index_kind(index), ("", ""))
            for segment in index.segments:
                uuid = str(segment.uuid)
                names[uuid] = index.name
                if file and tuple(index.field_names) == self.keys.names:
                    path = f"_indices/{uuid}/{file}"
                    batches = self.stores.tables.file_batches(path, [column])
                    try:
                        rows[uuid] = self.keys.count_values(b.column(0) for b in batches)
                    except (MemWalError, pa.ArrowException):
                        continue  # judged by when it was built
        return names, rows

    def _find_named_shards(self, view: TableView) -> set[str]:
        """Shards that are named after a key: of a spec that takes the key itself as the value."""
        if len(self.keys.names) > 1:
            return set()
        fields = {
            f.field_id
            for spec in view.mem_wal.shard_specs
            for f in spec.fields
            if f.transform == Transform.IDENTITY
        }
        shards = [(s.shard_id, dict(s.manifest.shard_field_entries)) for s in view.shards]
        valued = {
            shard: {value for name, value in entries.items() if name in fields}
            for shard, entries in shards
        }
        if not any(valued.values()):
            return set()
        known = {encode_value(value) for value in self.keys.table.column(0)}
        return {str(shard) for shard, values in valued.items() if values & known}

    # ---- one object

    def _see(
        self,
        file: StoredFile,
        hits: Mapping[str, int | MemWalError],
        names: _Names,
        index_rows: Mapping[str, int],
        shards: Set[str],
    ) -> Sighting | None:
        made = Sighting(
            path=file.path,
            kind=Kind.OTHER,
            rows=None,
            how="not known here: look at it, and move it away",
            size_bytes=file.size_bytes,
            modified_at_nanos=file.modified_at_nanos,
        )
        try:
            return self._place(made, hits, names, index_rows, shards)
        except Missing:
            return None  # deleted since it was listed
        except (MemWalError, KeyError, pa.ArrowException) as error:
            return replace(made, how=f"can't be read: {error}")

    def _place(
        self,
        made: Sighting,
        hits: Mapping[str, int | MemWalError],
        names: _Names,
        index_rows: Mapping[str, int],
        shards: Set[str],
    ) -> Sighting:
        path = made.path
        match path.split("/"):
            case ["data", name, *_]:
                owner = path if path in hits else f"data/{name.removesuffix('.lance')}.lance"
                return _see_data(made, Kind.DATA, owner, hits, names)
            case ["_deletions", *_]:
                return replace(made, kind=Kind.DELETION, rows=0, how="has numbers of rows only")
            case ["_indices", uuid, *_]:
                found = index_rows.get(uuid)
                how = "its values were read" if found is not None else "an index"
                pins = tuple(sorted(names.pins.get(uuid, ())))
                newest = names.newest.get(uuid, 0)
                made = replace(made, kind=Kind.INDEX, group=uuid, newest=newest, pins=pins)
                return replace(made, rows=found, how=how)
            case ["_versions", name]:
                version = layout.parse_table_manifest_name(name) or 0
                detached = layout.is_detached(version)
                pins = ("a detached version",) if detached else ()
                made = replace(made, kind=Kind.VERSION, pins=pins)
                made = replace(made, newest=0 if detached else version)
                return self._see_text(made, TABLE_MANIFEST_BYTES_MAX)
            case ["_transactions", name]:
                read, _, _ = name.partition("-")
                newest = int(read) + 1 if read.isdigit() else 0
                return self._see_text(replace(made, kind=Kind.TRANSACTION, newest=newest))
            case ["_refs", *_]:
                return self._see_text(replace(made, kind=Kind.REFERENCE))
            case [layout.BRANCHES, *_]:
                return replace(made, kind=Kind.BRANCH)
            case [layout.MEM_WAL, shard, "manifest", _] if layout.is_shard_folder(shard):
                how = "has numbers, and the values by which rows go to the shard"
                rows = int(shard in shards)
                return replace(made, kind=Kind.SHARD_MANIFEST, rows=rows, how=how)
            case [layout.MEM_WAL, shard, *rest] if layout.is_shard_folder(shard):
                return self._see_shard(replace(made, shard_id=ShardId(shard)), rest, hits)
            case [layout.MAINTENANCE, *_]:
                return self._see_maintenance(made)
        return made

    def _see_shard(
        self, made: Sighting, rest: Sequence[str], hits: Mapping[str, int | MemWalError]
    ) -> Sighting:
        match rest:
            case ["wal", name] if (position := layout.parse_wal_entry_name(name)) is not None:
                made = replace(made, kind=Kind.WAL_ENTRY, number=position)
                return self._see_entry(made, position)
            case [folder, *_] if (number := layout.parse_generation_folder(folder)) is not None:
                group = f"{layout.shard_folder(ShardId(str(made.shard_id)))}/{folder}"
                made = replace(made, kind=Kind.GENERATION, group=group, number=number)
                return _see_data(made, Kind.GENERATION, made.path, hits, _Names())
        return made

    def _see_entry(self, made: Sighting, position: int) -> Sighting:
        try:
            entry = self.stores.wal.rows(ShardId(str(made.shard_id)), position)
        except (Corruption, Refused) as error:
            return replace(made, how=f"can't be read: {error}")
        batches = [b for b in entry.batches if b.num_rows]
        rows = self.keys.count_in(batches) if batches else 0
        made = replace(made, generation=entry.entry.generation)
        made = replace(made, writer_epoch=entry.entry.writer_epoch)
        return replace(made, rows=rows, how="its keys were read")

    def _see_text(self, made: Sighting, bytes_max: int = OBJECT_BYTES_MAX) -> Sighting:
        data = self.stores.objects.get(made.path, bytes_max)
        return replace(made, rows=self.keys.count_in_texts(data), how="its texts were read")

    def _see_maintenance(self, made: Sighting) -> Sighting:
        path = made.path
        get = self.stores.objects.get
        if path.startswith(f"{layout.RUNS}/"):
            rows = self.keys.count_in_errors(get(path))
            return replace(made, kind=Kind.RUN_RECORD, rows=rows, how="its texts were read")
        if path.startswith(f"{layout.ERASURES}/"):
            return self._see_erasure(replace(made, kind=Kind.ERASURE))
        if path.startswith(tuple(f"{folder}/" for folder in _OWN)) or path in _OWN_FILES:
            how = "a document of memwal's own, without rows' values"
            return replace(made, kind=Kind.MAINTENANCE, rows=0, how=how)
        kind = Kind.INGEST if path.startswith(f"{layout.INGESTS}/") else Kind.MAINTENANCE
        kind = Kind.TORN if path.startswith(f"{layout.MAINTENANCE}/torn/") else kind
        count = self._count_file(path, get(path))
        how = "its rows were read" if kind is Kind.INGEST else "it was read"
        if count is None:
            how = "can't be read: torn, or of an unknown kind. Move it away if nobody needs it"
        return replace(made, kind=kind, rows=count, how=how)

    def _see_erasure(self, made: Sighting) -> Sighting:
        """An erasure's documents name objects; only its list of keys, while it is open, has any."""
        if not made.path.endswith("/keys.arrow"):
            return replace(made, rows=0, how="names objects, and no keys")
        table = pa.ipc.open_stream(self.stores.objects.get(made.path)).read_all()
        rows = self.keys.count_in(table.to_batches()) if self._fits(table.schema) else 0
        return replace(made, rows=rows, how="its keys were read")

    def _count_file(self, path: str, data: bytes) -> int | None:
        """Rows or texts with a key in a file by its name; None where it can't be told."""
        try:
            if path.endswith(".parquet"):
                file = pq.ParquetFile(BytesIO(data))
                if not self._fits(file.schema_arrow):
                    return None
                return self.keys.count_in(file.iter_batches(columns=list(self.keys.names)))
            if path.endswith(".arrow"):
                reader = _open_arrow(data)
                return self.keys.count_in(reader()) if self._fits_first(reader) else None
            if path.endswith(".lance"):
                batches = self.stores.tables.file_batches(path, self.keys.names)
                return self.keys.count_in(batches)
        except (pa.ArrowException, OSError, MemWalError):
            return None
        return self.keys.count_in_documents(data) if path.endswith(_TEXTS) else None

    def _fits(self, schema: pa.Schema) -> bool:
        return set(self.keys.names) <= set(schema.names)

    def _fits_first(self, reader: Callable[[], Iterator[pa.RecordBatch]]) -> bool:
        first = next(reader(), None)
        return first is None or self._fits(first.schema)

    # ---- what keeps versions, and what lies elsewhere

    def _read_pins(self) -> tuple[dict[int, list[str]], dict[str, int]]:
        """By version of main, the tags and branches that keep it; and the tags alone."""
        pinned: dict[int, list[str]] = {}
        tags: dict[str, int] = {}
        objects = self.stores.objects
        for kind, of, number in (
            ("tags", "branch", "version"),
            ("branches", "parentBranch", "parentVersion"),
        ):
            for info in objects.list(f"_refs/{kind}"):
                name = unquote(info.path.rsplit("/", 1)[-1].removesuffix(".json"))
                try:
                    reference = json.loads(objects.get(info.path))
                    if reference.get(of) is not None:
                        continue
                    version = int(reference[number])
                except Missing:
                    continue
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    raise Corruption(
                        "MW-G07", f"{objects.uri}: {info.path} can't be read as a reference"
                    ) from None
                word = "tag" if kind == "tags" else "branch"
                pinned.setdefault(version, []).append(f"{word} {name!r}")
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
        branches = {f.path.split("/_versions/")[0] for f in files if _is_branch_version(f.path)}
        for branch in sorted(branches):
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


def _is_data(path: str) -> bool:
    match path.split("/"):
        case ["data", name]:
            return name.endswith(".lance")
        case [layout.MEM_WAL, _, folder, "data", name]:
            return layout.parse_generation_folder(folder) is not None and name.endswith(".lance")
    return False


def _is_branch_version(path: str) -> bool:
    return path.startswith(f"{layout.BRANCHES}/") and "/_versions/" in path


def _see_data(
    made: Sighting, kind: Kind, owner: str, hits: Mapping[str, int | MemWalError], names: _Names
) -> Sighting:
    """A file with rows, or one that belongs to it; the rest of a generation goes by its group."""
    found = hits.get(owner)
    pins = tuple(sorted(names.pins.get(owner, ())))
    made = replace(made, kind=kind, newest=names.newest.get(owner, 0), pins=pins)
    made = replace(made, oldest=names.oldest.get(owner, 0))
    if isinstance(found, Missing):
        raise found
    if found is None and kind is Kind.GENERATION:
        return replace(made, rows=0, how="made of its generation's rows, whose keys were read")
    if found is None:
        return replace(made, how="belongs to no data file that is there")
    if isinstance(found, MemWalError):
        return replace(made, how=f"can't be read: {found}")
    return replace(made, rows=found, how="its keys were read")


def _share_group(seen: Sighting, groups: Mapping[str | None, int]) -> Sighting:
    """Everything in a generation holds what its rows hold: indexes, key lists, filters."""
    if seen.kind is Kind.GENERATION and seen.rows == 0 and seen.group in groups:
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


def _open_arrow(data: bytes) -> Callable[[], Iterator[pa.RecordBatch]]:
    """The batches of an Arrow file or stream, each time from the first."""

    def read() -> Iterator[pa.RecordBatch]:
        if data.startswith(b"ARROW1"):
            file: Any = pa.ipc.open_file(data)
            return (file.get_batch(n) for n in range(file.num_record_batches))
        return iter(pa.ipc.open_stream(data))

    return read
