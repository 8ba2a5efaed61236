"""pylance's own reading of base and MemWAL, which has to be told the shards and what is merged.

pylance does not tell that: it is decoded here, by the format's specification.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lance.mem_wal import LsmScanner, ShardSnapshot

from tests.torture.actors import Place
from tests.torture.history import History, now

_MEM_WAL = b"__lance_mem_wal"
Message = dict[int, list[Any]]


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
    for listed in map(decode, manifest[8]):
        if listed[1][0] > merged.get(shard, 0):
            snapshot = snapshot.with_sstable(listed[1][0], listed[2][0].decode())
    return snapshot


def _list_shards(table: Path) -> dict[str, Message]:
    """The newest manifest of each shard."""
    found = {}
    for folder in (table / "_mem_wal").iterdir():
        names = sorted(folder.glob("manifest/*.binpb"), key=lambda file: file.stem[::-1])
        if names:
            found[folder.name] = decode(names[-1].read_bytes())
    return found


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
