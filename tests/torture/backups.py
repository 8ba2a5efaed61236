"""Backups of a table that is at work, each read by its own list, and some once they are restored.

A whole backup is one moment of the table: a read of it, WAL included, by somebody else than memwal.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator, Sequence
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
            if self.rows and chance.random() < 0.3:
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
            problems = [*self._take_out(name, taken)]
            self._read(name, replace(self.place, uri=str(taken), storage={}), "backup", problems)

    def _read(self, name: str, copy: Place, by: str, problems: Sequence[str] = ()) -> None:
        rows = []
        try:
            if not problems:
                rows = self.rows[name] = read_level(copy, "wal")
        except Exception as error:
            problems = [f"can't be read: {type(error).__name__}: {error}"]
        self.world.history.add(
            "read", table=self.place.name, level="wal", by=by, begin=now(), rows=rows,
            exit=8 if problems else 0, keys=None, moment=self.made[name], name=name,
            said="; ".join(problems),
        )  # fmt: skip

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
        """Restore to a new place, as often as it takes, since some runs are killed; read it."""
        there = [
            name for name in self.rows if (self.dest / f"_maintenance/backups/{name}.pb").exists()
        ]
        if not there:
            return
        name = chance.choice(there)
        copy = replace(self.place, uri=str(self.world.folder / "restored"), storage={})
        shutil.rmtree(copy.uri, ignore_errors=True)
        for left in reversed(range(_RUNS_MAX)):
            code, _ = self.world.command(
                copy,
                f"restore {self.dest} --backup {name}",
                chance=chance if left else None,
                final=not left,
            )
            if code == 0 or (code == -9 and _opens(copy)):
                break
        self._read(name, copy, "restore")


def _opens(place: Place) -> bool:
    """Whether it is a table, or one that is not finished."""
    try:
        place.dataset()
    except (OSError, ValueError):
        return False
    return True
