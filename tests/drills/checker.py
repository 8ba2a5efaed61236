"""Reads a table without any of memwal: Lance's own reader, and the format's documents.

Nothing of it is used that a damage could have turned into an older state without a sign, such as a
hint: versions, manifests and entries are found by listing their folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from tests.drills.tables import Key, Row, Rows, Truth, fold
from tests.torture.lsm import Message, Unreadable, decode, find_merged

_TOMBSTONE = "_tombstone"


def read_base(table: Path, truth: Truth, version: int | None = None) -> Rows:
    """The base table, as Lance reads it."""
    return keyed(lance.dataset(str(table), version=version).to_table(), truth)


def read_latest(table: Path, truth: Truth, *, wal: bool = False) -> Rows:
    """Base and pending generations, with `wal` the WAL's rows, too."""
    version, manifest = _newest_version(table)
    merged = find_merged(manifest)
    rows = read_base(table, truth, version)
    for shard, state in sorted(_newest_manifests(table).items()):
        listed = sorted(
            ((one[1][0], one[2][0].decode()) for one in map(decode, state[8])),
            key=lambda g: g[0],
        )
        for generation, path in listed:
            if generation > merged.get(shard, 0):
                found = lance.dataset(str(table / "_mem_wal" / shard / path)).to_table()
                fold(rows, _changes(found, truth), folds=truth.folds)
        if wal:
            for entry in _entries(table / "_mem_wal" / shard / "wal", state):
                fold(rows, _changes(entry, truth), folds=truth.folds)
    return rows


def keyed(found: pa.Table, truth: Truth) -> Rows:
    """Rows by key. Raises Unreadable for a key that is there twice."""
    rows: Rows = {}
    for row in found.to_pylist():
        key = tuple(row[name] for name in truth.keys)
        if key in rows:
            raise Unreadable(f"key {key} is there twice")
        rows[key] = row
    return rows


def _changes(found: pa.Table, truth: Truth) -> Iterator[tuple[Key, Row | None]]:
    for row in found.to_pylist():
        deletes = row.pop(_TOMBSTONE, False)
        yield tuple(row[name] for name in truth.keys), None if deletes else row


def _one(message: Message, field: int, default: int = 0) -> int:
    return int(message[field][0]) if message[field] else default


def _bits(file: Path) -> int:
    return int(file.stem[::-1], 2)


def _entries(folder: Path, manifest: Message) -> Iterator[pa.Table]:
    """The entries above the replay position whose generation isn't flushed, in order."""
    for file in sorted(folder.glob("*.arrow"), key=_bits):
        if _bits(file) > _one(manifest, 3):
            with pa.ipc.open_stream(file.read_bytes()) as stream:
                named = (stream.schema.metadata or {}).get(b"generation")
                if named is None or int(named) >= _one(manifest, 6):
                    yield stream.read_all()


def _newest_manifests(table: Path) -> Mapping[str, Message]:
    found = {}
    for folder in (table / "_mem_wal").iterdir():
        files = sorted(folder.glob("manifest/*.binpb"), key=_bits)
        if files:
            found[folder.name] = decode(files[-1].read_bytes())
    return found


def _version_of(file: Path) -> int:
    number = int(file.stem)
    return 2**64 - 1 - number if len(file.stem) == 20 else number


def _newest_version(table: Path) -> tuple[int, Path]:
    files = (table / "_versions").glob("[0-9]*.manifest")
    return max((_version_of(file), file) for file in files)


def differences(found: Rows, wanted: Rows) -> list[str]:
    """What is lost, extra or other, as people read it; nothing where both are the same."""
    texts = []
    for what, keys in (
        ("lost", wanted.keys() - found.keys()),
        ("extra", found.keys() - wanted.keys()),
        ("other", {key for key in found.keys() & wanted.keys() if found[key] != wanted[key]}),
    ):
        if keys:
            some = ", ".join(map(str, sorted(map(str, keys))[:5]))
            texts.append(f"{len(keys)} rows {what} ({some})")
    return texts


def as_rows(found: Any, truth: Truth) -> Rows:
    """What a read gave, by key."""
    return keyed(found.read_all() if hasattr(found, "read_all") else found, truth)
