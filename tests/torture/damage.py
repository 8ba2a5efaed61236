"""Damages to the files of a table, drawn from a seed: what a disk, a copy tool or a hand may do."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SHARD = r"_mem_wal/[^/]+"
_GENERATION = rf"{_SHARD}/[0-9a-f]{{8}}_gen_\d+"
CLASSES: Mapping[str, str] = {
    "table manifest": r"_versions/[^/]+\.manifest",
    "table hint": r"_versions/latest_version_hint\.json",
    "data file": r"data/.+",
    "deletion file": r"_deletions/.+",
    "index file": r"_indices/.+",
    "transaction": r"_transactions/.+",
    "tag": r"_refs/.+",
    "shard manifest": rf"{_SHARD}/manifest/.+\.binpb",
    "shard hint": rf"{_SHARD}/manifest/version_hint\.json",
    "WAL entry": rf"{_SHARD}/wal/.+",
    "generation manifest": rf"{_GENERATION}/_versions/.+\.manifest",
    "generation data": rf"{_GENERATION}/data/.+",
    "generation deletions": rf"{_GENERATION}/_deletions/.+",
    "generation's rest": rf"{_GENERATION}/(?!_versions/.+\.manifest|data/|_deletions/).+",
    "checkpoint": r"_maintenance/checkpoints/.+",
    "record": r"_maintenance/(?!checkpoints/).+",
}
KINDS = ("flip", "zero", "cut", "delete", "swap", "replay")
WITHOUT_CHECKSUM = frozenset(
    {"data file", "deletion file", "index file", "generation data", "generation deletions",
     "generation's rest", "WAL entry"}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What was done to a file; `other` is the second one of a swap or a replay."""

    kind: str
    what: str
    """The class of the file."""
    path: str
    other: str = ""
    detail: str = ""
    same_size: bool = False

    @property
    def is_beyond(self) -> bool:
        """Whether nothing that is stored has to tell of it.

        Neither Lance's files nor WAL entries have checksums, and neither say where they belong. So
        bytes may be other ones; a file may stand for another one of its size, a WAL entry for
        another one of its generation. And nothing names the last entry of a WAL.
        """
        if self.what == "WAL entry":
            return self.kind != "cut"
        return self.what in WITHOUT_CHECKSUM and (self.kind in ("flip", "zero") or self.same_size)


def class_of(path: str) -> str | None:
    """The class of a table's file, None for one that no reader knows."""
    return next((name for name, text in CLASSES.items() if re.fullmatch(text, path)), None)


def list_files(table: Path) -> Mapping[str, Sequence[str]]:
    """The files of each class, oldest first."""
    found: dict[str, list[tuple[int, str]]] = {}
    for folder, _, names in os.walk(table):
        for name in names:
            file = Path(folder, name)
            path = str(file.relative_to(table))
            what = class_of(path)
            if what is not None:
                found.setdefault(what, []).append((file.stat().st_mtime_ns, path))
    return {what: [path for _, path in sorted(files)] for what, files in sorted(found.items())}


def damage(table: Path, chance: random.Random) -> Damage:
    """Do one damage. Another one is drawn where the first would change nothing."""
    files = list_files(table)
    while True:
        what = chance.choice(sorted(files))
        kind = chance.choice(KINDS)
        # Newer files matter more: half of the damages hit one of the last three.
        pool = files[what][-3:] if chance.random() < 0.5 else files[what]
        path = chance.choice(pool)
        done = _apply(table, kind, what, path, files[what], chance)
        if done is not None:
            return done


def _apply(
    table: Path, kind: str, what: str, path: str, alike: Sequence[str], chance: random.Random
) -> Damage | None:
    file = table / path
    data = file.read_bytes()
    if kind == "delete":
        file.unlink()
        return Damage(kind=kind, what=what, path=path)
    if kind in ("swap", "replay"):
        older = alike[: alike.index(path)]
        if not older:
            return None
        other = chance.choice(older)
        bytes_ = (table / other).read_bytes()
        if bytes_ == data:
            return None
        replace(file, bytes_)
        if kind == "swap":
            replace(table / other, data)
        same = len(bytes_) == len(data)
        return Damage(kind=kind, what=what, path=path, other=other, same_size=same)
    if not data:
        return None
    if kind == "cut":
        left = 0 if chance.random() < 0.2 else chance.randrange(len(data))
        replace(file, data[:left])
        return Damage(kind=kind, what=what, path=path, detail=f"{left} of {len(data)} bytes left")
    changed = bytearray(data)
    at = chance.randrange(len(data))
    if kind == "zero":
        size = min(chance.choice([1, 8, 64, 512]), len(data) - at)
        changed[at : at + size] = bytes(size)
        detail = f"{size} bytes from {at} of {len(data)}"
    else:
        bit = chance.randrange(8)
        changed[at] ^= 1 << bit
        detail = f"bit {bit} of byte {at} of {len(data)}"
    if changed == data:
        return None
    replace(file, bytes(changed))
    return Damage(kind=kind, what=what, path=path, detail=detail)


def replace(file: Path, data: bytes) -> None:
    """Give a file other bytes and its former dates; files that it is linked with stay."""
    dates = file.stat()
    file.unlink()
    file.write_bytes(data)
    os.utime(file, ns=(dates.st_atime_ns, dates.st_mtime_ns))
