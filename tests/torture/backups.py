"""Backups of a table that is at work, each read by its own list, and restored over it at times.

A whole backup is one moment of the table: a read of it, WAL included, by somebody else than memwal.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.torture.actors import Place
from tests.torture.history import now, turns
from tests.torture.lsm import Told, decode, read_level

if TYPE_CHECKING:
    from tests.torture.run import World

_RUNS_MAX = 60


@dataclass(kw_only=True)
class Backups:
    """The backups of one table: when each was made, and what it holds."""

    world: World
    place: Place
    made: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: dict[str, list[Told]] = field(default_factory=dict)

    @property
    def dest(self) -> Path:
        return self.world.folder / "backups"

    def work(self, seed: str, until: float) -> None:
        """Back up, and perhaps restore, over and over."""
        for chance in turns(seed, until):
            keep = "--keep 4" if chance.random() < 0.3 else ""
            self.back_up(f"b{len(self.made)}", keep, chance)
            if self.world.scenario.restores and self.rows and chance.random() < 0.7:
                self._restore(chance)

    def back_up(self, name: str, options: str = "", chance: random.Random | None = None) -> None:
        begin, words = now(), f"backup {self.dest} --name {name} {options}"
        self.world.command(self.place, words, chance=chance, final=chance is None)
        self.made[name] = begin, now()
        self.look()

    def look(self, *, again: bool = False) -> None:
        """Read those that claim to be whole, whatever became of the run; `again`: each."""
        for name in sorted(file.stem for file in self.dest.glob("_maintenance/backups/*.pb")):
            if name in self.rows and not again:
                continue
            taken = self.world.folder / "taken" / name
            shutil.rmtree(taken, ignore_errors=True)
            try:
                problems = [*self._take_out(name, taken)]
                copy = replace(self.place, uri=str(taken), storage={})
                rows = [] if problems else read_level(copy, "wal")
            except Exception as error:
                problems, rows = [f"can't be read: {type(error).__name__}: {error}"], []
            self.world.history.add(
                "read", table=self.place.name, level="wal", by="backup", begin=now(), rows=rows,
                exit=8 if problems else 0, keys=None, moment=self.made[name], name=name,
                said="; ".join(problems),
            )  # fmt: skip
            if not problems:
                self.rows[name] = rows

    def _take_out(self, name: str, place: Path) -> Iterator[str]:
        """Make a table of what a backup lists, and nothing else; says what is wrong with it."""
        folder = self.dest / "_maintenance" / "backups"
        data = (folder / f"{name}.objects").read_bytes()
        if decode((folder / f"{name}.pb").read_bytes())[11] != [hashlib.sha256(data).digest()]:
            yield "the list is not that of the document"
        for one in map(decode, decode(data)[1]):
            path, size, digest = one[1][0].decode(), (one[2] or [0])[0], one[3][0]
            file = self.dest / path
            if not file.exists():
                yield f"{path} is gone"
                continue
            found = file.read_bytes()
            if len(found) != size or hashlib.sha256(found).digest() != digest:
                yield f"{path} is not what the list says"
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place / path)

    def _restore(self, chance: random.Random) -> None:
        """Restore over the table, as often as it takes: some runs are killed."""
        there = [
            name for name in self.rows if (self.dest / f"_maintenance/backups/{name}.pb").exists()
        ]
        name, begin = chance.choice(there), now()
        words = f"restore {self.dest} --over --backup {name}"
        for left in reversed(range(_RUNS_MAX)):
            code, _ = self.world.command(
                self.place, words, chance=chance if left else None, final=not left
            )
            if code == 0:
                break
        self.world.history.add(
            "restored", table=self.place.name, begin=begin, name=name,
            rows=[row[:2] for row in self.rows[name]],
        )  # fmt: skip
