"""Reads base and MemWAL without memwal: by pylance's own scanner, and by the format's documents.

pylance has to be told the shards and what is merged, which is decoded here. Nothing is used that a
damage could have turned into an older state without a sign, such as a hint: versions, manifests
and entries are found by listing their folders.
"""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmScanner, ShardSnapshot

from tests.torture.actors import KEYS, Place
from tests.torture.history import History, now

_MEM_WAL = b"__lance_mem_wal"
Message = dict[int, list[Any]]
Key = tuple[Any, ...]
Told = list[Any]
"""A row as a history has it."""


class Unreadable(ValueError):
    """A table isn't what its format says."""


def read_lsm(place: Place, seconds: float) -> None:
    """One read after the other, of the latest version and the shards as they were before it."""
    history, until = History(place.folder), time.monotonic() + seconds
    while time.monotonic() < until:
        begin = now()
        try:
            shards = _list_shards(Path(place.uri))
            dataset = place.dataset()
            name = f"{2**64 - 1 - dataset.version:020}.manifest"
            merged = find_merged(Path(place.uri) / "_versions" / name)
            snapshots = [_snapshot(name, one, merged) for name, one in shards.items()]
            rows = place.told(LsmScanner.from_snapshots(dataset, snapshots).to_table())
        except (OSError, ValueError):  # collected or expired meanwhile
            time.sleep(0.05)
            continue
        history.add(
            "read", table=place.name, level="latest", by="LsmScanner", begin=begin, exit=0,
            rows=rows, keys=None, moment=None, name=f"version {dataset.version}", said="",
        )  # fmt: skip
        time.sleep(0.05)


def _snapshot(shard: str, manifest: Message, merged: dict[str, int]) -> Any:
    snapshot = ShardSnapshot(shard)
    for generation, path in _listed(manifest):
        if generation > merged.get(shard, 0):
            snapshot = snapshot.with_sstable(generation, path)
    return snapshot


# ---- by the format's documents, of a table on a disk that nobody writes to


def tell(place: Place, out: str) -> None:
    """Write down what each level holds, or why it can't be read."""
    found: dict[str, Any] = {}
    for level in ("base", "latest", "wal"):
        try:
            found[level] = read_level(place, level)
        except Unreadable as wrong:
            found[level] = {"wrong": str(wrong)}
        except Exception as error:
            found[level] = {"told": f"{type(error).__name__}: {error}"}
    Path(out).write_text(json.dumps(found))


def read_level(place: Place, level: str) -> list[Told]:
    """The base alone; with the generations that are pending; with the WAL's rows, too."""
    table = Path(place.uri)
    files = (table / "_versions").glob("[0-9]*.manifest")
    version, manifest = max((_version_of(file), file) for file in files)
    rows: dict[Key, Told] = {}
    for key, row in _changes(place, place.dataset(version).to_table()):
        if key in rows:
            raise Unreadable(f"key {key} is there twice")
        rows[key] = row or []
    merged = find_merged(manifest) if level != "base" else {}
    for shard, state in sorted(_list_shards(table).items()) if level != "base" else ():
        for generation, path in sorted(_listed(state)):
            if generation > merged.get(shard, 0):
                _apply(place, rows, _rows_of(str(table / "_mem_wal" / shard / path), place))
        for entry in _entries(table / "_mem_wal" / shard / "wal", state) if level == "wal" else ():
            _apply(place, rows, entry)
    return list(rows.values())


def _rows_of(generation: str, place: Place) -> pa.Table:
    """A flush hides all rows of a key but its last, which are summands where columns are folded."""
    dataset = lance.dataset(generation)
    if not place.policy:
        return dataset.to_table()
    return dataset.scanner(with_row_id=True, include_deleted_rows=True).to_table()


def _changes(place: Place, found: pa.Table) -> Iterator[tuple[Key, Told | None]]:
    for row in found.to_pylist():
        told = None if row.get("_tombstone") else [row[name] for name in place.names]
        yield tuple(row[name] for name, _ in KEYS[place.key]), told


def _apply(place: Place, rows: dict[Key, Told], found: pa.Table) -> None:
    """Puts, and deletes, one after the other."""
    for key, row in _changes(place, found):
        before = rows.get(key)
        if row is None:
            rows.pop(key, None)
        elif before is not None and place.policy:
            rows[key] = [*row[:2], before[2] + row[2], [*before[3], *row[3]]]
        else:
            rows[key] = row


def _entries(folder: Path, manifest: Message) -> Iterator[pa.Table]:
    """The entries above the replay position whose generation isn't flushed, in order."""
    for file in sorted(folder.glob("*.arrow"), key=_bits):
        if _bits(file) > _one(manifest, 3):
            with pa.ipc.open_stream(file.read_bytes()) as stream:
                named = (stream.schema.metadata or {}).get(b"generation")
                if named is None or int(named) >= _one(manifest, 6):
                    yield stream.read_all()


def count_stored(place: Place) -> dict[str, int]:
    """What there is of versions and generations, and how often shards were claimed.

    A folder without a file, which a killed writer leaves on a disk, is no generation.
    """
    table = Path(place.uri)
    return {
        "versions": len([*table.glob("_versions/[0-9]*.manifest")]),
        "generations": sum(map(_has_files, table.glob("_mem_wal/*/*_gen_*"))),
        "claims": sum(_one(manifest, 2) for manifest in _list_shards(table).values()),
    }


def _has_files(folder: Path) -> bool:
    return any(map(Path.is_file, folder.rglob("*")))


def _listed(manifest: Message) -> list[tuple[int, str]]:
    return [(one[1][0], one[2][0].decode()) for one in map(decode, manifest[8])]


def _list_shards(table: Path) -> dict[str, Message]:
    """The newest manifest of each shard."""
    found = {}
    for folder in table.glob("_mem_wal/*"):
        names = sorted(folder.glob("manifest/*.binpb"), key=_bits)
        if names:
            found[folder.name] = decode(names[-1].read_bytes())
    return found


def _bits(file: Path) -> int:
    return int(file.stem[::-1], 2)


def _version_of(file: Path) -> int:
    number = int(file.stem)
    return 2**64 - 1 - number if len(file.stem) == 20 else number


def _one(message: Message, field: int) -> int:
    return int(message[field][0]) if message[field] else 0


def find_merged(version: Path) -> dict[str, int]:
    """The highest merged generation of each shard, as the manifest of a table's version has it."""
    data = version.read_bytes()
    manifest = decode(_block(data, *struct.unpack("<Q", data[-16:-8])))
    for index in map(decode, decode(_block(data, manifest[6][0]))[1]):
        if index[3] == [_MEM_WAL]:
            details = decode(decode(index[6][0])[2][0])
            pairs = [(decode(one[1][0])[1][0], one[2][0]) for one in map(decode, details[9])]
            return {str(uuid.UUID(bytes=shard)): generation for shard, generation in pairs}
    raise Unreadable("no MemWAL")


def _block(data: bytes, place: int) -> bytes:
    (size,) = struct.unpack_from("<I", data, place)
    return data[place + 4 : place + 4 + size]


def decode(data: bytes) -> Message:
    """A message of Protobuf: numbers and bytes by field."""
    message: Message = defaultdict(list)
    bytes_ = iter(data)
    for tag in _numbers(bytes_):
        kind = tag & 7
        if kind == 0:
            value: Any = next(_numbers(bytes_))
        else:
            size = {1: 8, 5: 4}.get(kind) or next(_numbers(bytes_))
            value = bytes(next(bytes_) for _ in range(size))
        message[tag >> 3].append(value)
    return message


def _numbers(data: Iterator[int]) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
