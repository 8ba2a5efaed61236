"""Changes of columns between the sessions of writers, by Lance's own calls and by `memwal schema`.

What killed writers left in the WAL is there at every change. Each column has its incarnation in its
metadata, and writers put that as its value, so that a row tells which column it was written for.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.torture.actors import Place, find_marked
from tests.torture.history import now, turns

if TYPE_CHECKING:
    from tests.torture.run import World

_TRIES_MAX = 20
_NAMES = ("x", "y", "z")
_TO_REST = ("rescue --idle 0s --yes", "merge --engine local")


@dataclass(kw_only=True)
class Columns:
    """Who changes the columns of one table: it has one of incarnation, or none."""

    world: World
    place: Place
    incarnations: Any = field(default_factory=lambda: count(1))

    def work(self, seed: str, until: float) -> None:
        for chance in turns(seed, until):
            time.sleep(chance.random())
            with self.world.rest():
                begin = now()
                self._change(chance)
                self.world.history.add("columns", table=self.place.name, begin=begin)

    def _change(self, chance: random.Random) -> None:
        old = "".join(find_marked(self.place.dataset().schema))
        new = chance.choice([name for name in _NAMES if name != old])
        if not old:
            how = chance.choice(["add", "schema add"])
        else:
            how = chance.choice([*["again"] * 3, "another", "another", "rename", "drop", "schema"])
        self.world.history.add("upkeep", table=self.place.name, name=f"column: {how}")
        if how == "schema add":
            self._apply("--add", f"{new}:int64", chance)
        elif how == "schema":
            words = ("--drop", old) if chance.random() < 0.3 else ("--rename", f"{old}={new}")
            self._apply(*words, chance)
        elif how == "rename":
            self._rename(old, new)
        elif how != "add":
            self._drop(old)
        if how in ("add", "again", "another"):
            self._add(old if how == "again" else new)
        # A merge before there are values would give the column files, and its id would be its own.
        if how not in ("add", "schema add"):
            self._settle(old, new, how, chance)

    def _settle(self, old: str, new: str, how: str, chance: random.Random) -> None:
        """Rescue and merge; what is refused follows the advice, and has to pass then."""
        told = [self._run(line) for line in _TO_REST]
        codes = {code for text in told for code in re.findall("MW-K0[67]|MW-K12", text)}
        if not any(told):
            return
        if how not in ("again", "another", "rename") or not codes:
            self.world.fault("refused without a cause", f"{how}: {told}")
        name = old if how == "again" else new
        if how == "rename":
            self._rename(new, old)
        else:
            self._drop(name)
        for text in filter(None, map(self._run, _TO_REST)):
            self.world.fault("refused after what was advised", f"{how}, {codes}: {text}")
        if how == "rename":
            self._apply("--rename", f"{old}={new}", chance)
        else:
            self._add(name)

    def _run(self, line: str) -> str:
        """What a command says if it can't do its work: the lease may be held, or its end lost."""
        for _ in range(_TRIES_MAX):
            code, text = self.world.command(self.place, line)
            if code not in (4, -9):
                break
        return text or f"exit {code}" if code else ""

    def _apply(self, option: str, change: str, chance: random.Random) -> None:
        line = f"schema {option} {change} --apply --fence --engine local"
        self.world.command(self.place, line, chance=chance)  # perhaps killed, and done again
        if told := self._run(line):
            self.world.fault("schema that can't go on", f"{line}: {told[-600:]}")
        if option == "--add":
            marks = {"incarnation": str(next(self.incarnations))}
            name = change.partition(":")[0]
            self._do(lambda dataset: dataset.replace_field_metadata(name, marks))

    def _add(self, name: str) -> None:
        marks = {"incarnation": str(next(self.incarnations))}
        self._do(lambda dataset: dataset.add_columns(pa.field(name, pa.int64(), metadata=marks)))

    def _drop(self, name: str) -> None:
        self._do(lambda dataset: dataset.drop_columns([name]))

    def _rename(self, old: str, new: str) -> None:
        self._do(lambda dataset: dataset.alter_columns({"path": old, "name": new}))

    def _do(self, act: Callable[[Any], object]) -> None:
        for _ in range(_TRIES_MAX):
            with suppress(OSError):  # it lost a race
                act(self.place.dataset())
                return
        raise TimeoutError("a column can't be changed")
