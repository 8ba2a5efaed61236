"""Two watches over one table that do all its work, and are killed, ended and started again.

After each of that the writers rest, and all that was flushed has to be merged and indexed in time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.watching import Watch
from tests.torture.actors import Place

if TYPE_CHECKING:
    from tests.torture.run import World

_FAULTS = ("worker killed", "watch killed", "host died", "told to end", "hung up")
_END_SECONDS_MAX = 30.0
_LEASE_SECONDS = 15
_LATE_SECONDS_MAX = _LEASE_SECONDS + 50
_GROWTH_MAX = 1.3
_SAMPLES_MIN = 300
"""Of its memory, once a second: only a long run can tell whether it stays level."""


class Watches:
    """`work` until the time is over, then `end`."""

    def __init__(self, world: World, place: Place) -> None:
        self.world, self.place = world, place
        self.bytes: list[int] = []
        words = ["--all", "--config", world.folder / "memwal.toml", "--json"]
        words += ["--freshness", "2s", "--every", "0.3s"]
        world.configure(place, f"lease_seconds = {_LEASE_SECONDS}\n")
        folders = [world.folder / "out" / f"watch{number}" for number in range(2)]
        for folder in folders:
            folder.mkdir()
        self.watches = [Watch(words, folder) for folder in folders]
        self.told = dict.fromkeys(self.watches, 0)
        """How many events each had told when it was started."""

    def work(self, seed: str, until: float) -> None:
        chance = random.Random(seed)
        with ExitStack() as stack:
            for watch in self.watches:
                stack.enter_context(watch)
            while time.monotonic() < until:
                for _ in range(chance.randint(1, 3)):
                    time.sleep(1)
                    self.bytes.append(sum(watch.take().memory_bytes for watch in self.watches))
                fault = chance.choice(_FAULTS)
                self.world.history.add("stop", who="watch", signal=fault)
                self._befall(fault, chance)
                with self.world.rest():
                    self._be_in_time(fault)
            for watch in self.watches:
                self._end(watch, signal.SIGTERM)
        self._look_back()

    def _befall(self, fault: str, chance: random.Random) -> None:
        watch = chance.choice(self.watches)
        if fault == "worker killed":
            for worker in watch.workers()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
            return
        if fault in ("told to end", "hung up"):
            self._end(watch, signal.SIGTERM if fault == "told to end" else signal.SIGHUP)
        else:
            watch.send(signal.SIGKILL)
            watch.wait(_END_SECONDS_MAX)
            watch.wait_until_none_left(_END_SECONDS_MAX)
        if fault == "host died":  # nobody can see that its lease's holder is gone
            for newest in sorted(Path(self.place.uri, "_maintenance/lease").glob("0*"))[-1:]:
                claim = json.loads(newest.read_bytes())
                newest.write_text(json.dumps({**claim, "holder": "who@another-host:1"}))
        self.told[watch] = len(watch.events)
        watch.start()

    def _be_in_time(self, fault: str) -> None:
        until = "indexed" if self.world.scenario.indexed else "merged"
        line = f"status --until {until} --timeout {_LATE_SECONDS_MAX}s"
        if self.world.command(self.place, line)[0] != 0:
            said = [watch.stderr()[-500:] for watch in self.watches]
            self.world.fault("late", f"after {fault}: {said}")
        self.world.read_base(self.place)

    def _end(self, watch: Watch, number: int) -> None:
        until = time.monotonic() + _LATE_SECONDS_MAX
        while len(watch.events) == self.told[watch] and time.monotonic() < until:
            time.sleep(0.1)  # what has not come up yet is ended by any signal
        watch.send(number)
        code = watch.wait(_END_SECONDS_MAX)
        if code != 0:
            self.world.fault("watch ended badly", f"{code}: {watch.stderr()[-500:]}")
        watch.wait_until_none_left(1.0)

    def _look_back(self) -> None:
        """What they told in all that time, what they took, and what they leave."""
        told = Counter(event["event"] for watch in self.watches for _, event in watch.events)
        bad = [line for watch in self.watches for line in watch.bad_lines]
        wanted = {"merge", "index-catchup"} if self.world.scenario.indexed else {"merge"}
        if bad or not wanted <= told.keys():
            self.world.fault("events", f"{dict(told)}, {bad[:3]}")
        code, text = self.world.command(self.place, "status", final=True)
        lease = json.loads(text)["tables"][0]["lease"] if code == 0 else None
        if lease and lease["state"] == "held":
            self.world.fault("lease left", str(lease))
        quarter = len(self.bytes) // 4
        if len(self.bytes) >= _SAMPLES_MIN:
            first = statistics.median(self.bytes[quarter : 2 * quarter])
            last = statistics.median(self.bytes[-quarter:])
            if last > _GROWTH_MAX * first:
                self.world.fault("memory grows", f"{first} to {last} bytes")
