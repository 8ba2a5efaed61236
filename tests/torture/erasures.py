"""Erasures of keys that a killed writer's WAL holds, and what is stored of them at the end."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.torture import actors
from tests.torture.actors import Place
from tests.torture.history import turns

if TYPE_CHECKING:
    from tests.torture.run import World

_AT_ONCE = "--execute --yes --retention 0s --grace 0s --allow-short-retention"
_IN_THE_WAY = "no later run is sure to end the erasure"
_FIRST = 10**6
"""Keys from here on are put to be erased, and never again: their text is no other's."""
_TRIES_MAX = 20


@dataclass(kw_only=True)
class Erasures:
    """Who erases keys of one table, whose keys are texts."""

    world: World
    place: Place
    erased: int = 0

    def work(self, seed: str, until: float) -> None:
        for chance in turns(seed, until):
            time.sleep(1 + chance.random())
            shard = chance.choice(self.place.shards)
            with self.world.busy[self.place.name, shard]:
                self._erase(shard, chance)

    def _erase(self, shard: str, chance: random.Random) -> None:
        key, world = _FIRST + self.erased, self.world
        self.erased += 1
        session = next(world.sessions)
        steps = [("put", [key]), ("sleep", [60_000])]
        writer = world.start(actors.write, self.place, shard, shard, session, steps)
        until = time.monotonic() + 10
        while not [*self._find_marker(key)] and time.monotonic() < until:
            time.sleep(0.02)
        if not [*self._find_marker(key)]:
            world.fault("no marker to look for", f"key {key} is not in the WAL")
        writer.kill()
        writer.join()
        for _ in range(chance.randrange(3)):  # idle claims, above which entries stay
            idle = next(world.sessions)
            world.call(actors.write, self.place, shard, shard, idle, [])
        if chance.random() < 0.5:
            world.command(self.place, "merge --engine local")
        op = next(world.sessions) * 1000
        facts = {"table": self.place.name, "shard": shard, "session": op // 1000}
        world.history.add("op", **facts, by="erase", id=op, deletes=True, keys=[key])
        words = ["erase", *self.place.key_words(key), *_AT_ONCE.split()]
        for number in range(_TRIES_MAX):
            code, text = world.command(self.place, words, chance=None if number else chance)
            if code == 0 or (
                code == 6 and _IN_THE_WAY in text
            ):  # deleted, and perhaps still stored
                world.history.add("ack", id=op)
                break

    def end(self) -> None:
        """Nothing else is at work: each is done, or can tell when, as of what a killed one staged.

        Of keys whose erasure is done, nothing is stored.
        """
        code, text = self.world.command(self.place, f"erase resume {_AT_ONCE}")
        left = {one["erasure_id"]: one for one in self._list() if one["state"] != "done"}
        if code or not all(one["until"] for one in left.values()):
            detail = f"exit {code}: {left}, {text[-900:]}"
            self.world.fault("erasure that does not end", detail)
        for key in range(_FIRST, _FIRST + self.erased):
            found = [*self._find_marker(key)]
            if found and not any(
                f"_maintenance/erasures/{one}/keys.arrow" in found for one in left
            ):
                self.world.fault("erased key still stored", f"{key}: {found[:5]}")
        self.world.history.add("upkeep", table=self.place.name, name=f"erasures left: {len(left)}")

    def _list(self) -> list[dict[str, Any]]:
        _, text = self.world.command(self.place, "erase list")
        found: list[dict[str, Any]] = json.loads(text)["tables"][0]["erasures"]
        return found

    def _find_marker(self, key: int) -> Iterator[str]:
        """The files below the table that have the text of the key, however it is quoted."""
        for file in Path(self.place.uri).rglob("*"):
            if file.is_file() and b"s %d" % key in file.read_bytes():
                yield str(file.relative_to(self.place.uri))
