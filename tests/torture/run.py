"""Runs scenarios: starts, kills and stalls processes on a table, heals it, and has it judged."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import lance

from tests.torture import actors
from tests.torture.actors import Place
from tests.torture.history import History, now
from tests.torture.judge import Verdict, judge, show
from tests.torture.scenarios import SCENARIOS, Scenario

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.torture.warm", "tests.torture.actors"])
_COMMAND_SECONDS_MAX = 120


class World:
    """One table, what is derived from it, and everybody at work on them."""

    def __init__(self, scenario: Scenario, seed: int, folder: Path) -> None:
        self.scenario, self.seed, self.folder = scenario, seed, folder
        (folder / "out").mkdir(parents=True)
        self.history = History(folder)
        self.over = threading.Event()
        self.commands = count(1)
        self.sessions = count(1)
        self.checkpoints: list[str] = []
        self.codes: Counter[str] = Counter()
        self.errors: list[str] = []
        self.places: list[Place] = []

    # -- tables

    def make(self, uri: str) -> Place:
        scenario = self.scenario
        place = Place(
            name="t", uri=uri, folder=str(self.folder), key=scenario.key, policy=scenario.policy,
            keyed=scenario.keyed,
            shards=[_shard(f"{self.seed} {n}") for n in range(scenario.shards)],
        )  # fmt: skip
        keys = range(0, scenario.keys * scenario.shards, 2) if scenario.keyed else range(-20, 0)
        dataset = lance.write_dataset(place.rows(keys, 0), uri, schema=place.schema)
        if scenario.indexed:
            dataset.create_scalar_index("text", "INVERTED")
        dataset.initialize_mem_wal()
        self.begin(place, [[key, 0] for key in keys])
        if scenario.policy:
            config = self.folder / "memwal.toml"
            config.write_text(
                f'[tables.t]\nuri = "{uri}"\n[tables.t.policy.columns]\n'
                'total = "sum"\nlog = "list_append"\n'
            )
            self.command(place, "merge --engine local", config=True, final=True)
        return place

    def begin(self, place: Place, rows: Sequence[Sequence[int]], *, clone: bool = False) -> None:
        self.places.append(place)
        scenario = self.scenario
        self.history.add(
            "table", table=place.name, rows=rows, policy=scenario.policy, keyed=scenario.keyed,
            clone=clone, shards=list(place.shards),
        )  # fmt: skip

    # -- processes

    def start(self, function: Callable[..., None], *given: Any, **named: Any) -> Any:
        process = _PROCESSES.Process(target=function, args=given, kwargs=named, daemon=True)
        process.start()
        return process

    def hurt(self, process: Any, chance: random.Random, who: str, seconds: float) -> None:
        """Perhaps kill or stall it, at some moment of about as many seconds."""
        fate = chance.random()
        if fate > self.scenario.kills + self.scenario.stalls:
            return
        process.join(chance.random() * seconds)
        kill = fate < self.scenario.kills
        self.history.add("stop", who=who, signal="KILL" if kill else "STOP")
        with suppress(ProcessLookupError):
            if kill:
                os.kill(process.pid, signal.SIGKILL)
            elif process.is_alive():
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(chance.random() * 1.5)
                os.kill(process.pid, signal.SIGCONT)

    def command(
        self,
        place: Place,
        line: str | Sequence[str],
        *,
        chance: random.Random | None = None,
        config: bool = False,
        final: bool = False,
    ) -> tuple[int, str]:
        """Run a command on the table and put it on record, unless it is a read."""
        words = line.split() if isinstance(line, str) else list(line)
        out = str(self.folder / "out" / f"{next(self.commands)}")
        given = [*words, "--json"]
        given.insert(2 if words[0] == "checkpoint" else 1, place.name if config else place.uri)
        if config:
            given += ["--config", str(self.folder / "memwal.toml")]
        begin = now()
        process = self.start(actors.run_command, given, out)
        if chance is not None:
            self.hurt(process, chance, " ".join(words), 1.0)
        process.join(_COMMAND_SECONDS_MAX)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
            self.errors.append(f"{words} took more than {_COMMAND_SECONDS_MAX} s")
            code = -9
        said = _text(f"{out}.err")
        text = _text(out)
        self.codes[f"{words[0]} {code}"] += 1
        if words[0] != "read":
            said = said if code else ""
            self.history.add(
                "job", table=place.name, name=words[0], args=words[1:], begin=begin, exit=code,
                said=(said or text if code else "")[-1500:], final=final,
            )  # fmt: skip
        else:
            self._record_read(place, words, begin, code, text, said, final)
        for file in (out, f"{out}.err"):
            if code in (0, -9):
                with suppress(OSError):
                    Path(file).unlink()
        return code, text

    def _record_read(
        self,
        place: Place,
        words: list[str],
        begin: int,
        code: int,
        text: str,
        said: str,
        final: bool,
    ) -> None:
        rows, moment, keys, level = [], None, None, "latest"
        if code == 0:
            found = json.loads(text)["tables"][0]["rows"]
            names = ["i", "n", *(["total", "log"] if place.policy else [])]
            rows = [[row[name] for name in names] for row in found]
        if "--with-wal" in words:
            level = "wal"
        elif "snapshot" in words:
            level = "snapshot"
        elif "--checkpoint" in words:
            moment = self.moments[words[-1]]
        if "--key" in words:
            keys = [self.asked.pop(" ".join(words))]
        self.history.add(
            "read", table=place.name, level=level, by=" ".join(words[1:3]) or "latest", begin=begin,
            exit=code, rows=rows, keys=keys, moment=moment, name=words[-1], final=final,
            said=said[-1500:] if code not in (0, -9) else "",
        )  # fmt: skip

    # -- actors

    def write(self, place: Place, shard: str, until: float, seed: str) -> None:
        """One session after the other; a stalled one goes on beside its successor."""
        chance = random.Random(seed)
        mine = place.shards.index(shard)
        fresh = count(mine * 10**6)
        moved = 0
        while time.monotonic() < until:
            session = next(self.sessions)
            steps: list[tuple[str, list[int]]] = []
            own = [k * len(place.shards) + mine for k in range(self.scenario.keys)]
            if self.scenario.moves and chance.random() < 0.7:
                size = self.scenario.moves
                halves = [own[-size:], own[-2 * size : -size]]
                if chance.random() < 0.5:  # and rows of other keys with it
                    steps.append(("put", chance.sample(own, 3)))
                steps += [("put", halves[moved % 2]), ("delete", halves[1 - moved % 2])]
                moved += 1
                own = own[: -2 * size] or own[:1]
            for _ in range(chance.randrange(0, 25)):
                if not place.keyed:
                    steps.append(("put", [next(fresh) for _ in range(chance.randint(1, 4))]))
                else:
                    what = "delete" if chance.random() < 0.25 else "put"
                    size = min(len(own), chance.choice([1, 1, 1, 3]))
                    steps.append((what, chance.sample(own, size)))
                steps.append(("sleep", [int(chance.random() * 2 * self.scenario.pause_ms)]))
            limits = (
                {"max_memtable_rows": self.scenario.memtable_rows}
                if (self.scenario.memtable_rows)
                else {}
            )
            process = self.start(actors.write, place, shard, session, steps, **limits)
            self.hurt(process, chance, f"session {session}", 0.3 + len(steps) * 0.01)
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()

    def work(self, place: Place, seed: str, until: float) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            line = _choose(chance, self.scenario.jobs)
            if line == "checkpoint":
                self._checkpoint(place, chance)
            else:
                self.command(place, line + _options(line, chance), chance=chance)
            time.sleep(chance.random() * 0.2)

    def _checkpoint(self, place: Place, chance: random.Random) -> None:
        if len(self.checkpoints) > 2:
            name = self.checkpoints.pop(chance.randrange(len(self.checkpoints)))
            self.command(place, f"checkpoint drop {name}", chance=chance)
            return
        name, begin = f"c{next(self.commands)}", now()
        code, _ = self.command(place, f"checkpoint create {name}", chance=chance)
        if code == 0:
            self.moments[name] = (begin, now())
            self.checkpoints.append(name)

    def read(self, place: Place, seed: str, until: float) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            line = _choose(chance, self.scenario.reads)
            words = ["read", *line.split()]
            if line == "--checkpoint":
                names = list(self.checkpoints)
                if not names:
                    continue
                words.append(chance.choice(names))
            if "--key" in words:
                key = chance.randrange(self.scenario.keys * self.scenario.shards)
                words.remove("--key")
                for name, value in place.key_of(key).items():
                    text = f"0x{value.hex()}" if isinstance(value, bytes) else value
                    words += ["--key", f"{name}={text}"]
                self.asked[" ".join(words)] = key
            self.command(place, words, chance=chance if chance.random() < 0.2 else None)

    def use_lance(self, place: Place, seed: str, until: float) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            what = _choose(chance, self.scenario.lance)
            argument = 5
            if what == "restore":  # what a merge did is undone
                argument = place.dataset().version
                while self.command(place, "merge --engine local")[0] == 4:
                    pass
            process = self.start(actors.upkeep, place, what, argument, chance.randrange(10**6))
            process.join(30)
            time.sleep(chance.random() * 0.5)

    def clone(self, place: Place, seed: str, until: float) -> None:
        """A copy by Lance itself, with writers of its own, and all that is done to a table."""
        chance = random.Random(seed)
        time.sleep((until - time.monotonic()) * 0.4)
        self.command(place, "merge --engine local")  # progress that isn't the clone's own
        kind = chance.choice(["deep_clone", "shallow_clone"])
        uri = f"{place.uri}-{kind}"
        version = place.dataset().version
        place.dataset().tags.create("cloned", version)  # else a shallow one's files may expire
        getattr(place.dataset(), kind)(uri, version)
        twin = Place(**{**place.__dict__, "name": kind, "uri": uri})
        self.begin(twin, place.told(place.dataset(version).to_table()), clone=True)
        self._run(
            *(lambda s=s: self.write(twin, s, until, f"{seed} {s}") for s in twin.shards),
            lambda: self.work(twin, f"{seed} work", until),
            lambda: self.read(twin, f"{seed} read", until),
        )

    # -- all of it

    def _run(self, *actors_: Callable[[], None]) -> None:
        def run(actor: Callable[[], None]) -> None:
            try:
                actor()
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=run, args=(actor,)) for actor in actors_]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def torture(self, place: Place, seconds: float) -> None:
        self.asked: dict[str, int] = {}
        self.moments: dict[str, tuple[int, int]] = {}
        until = time.monotonic() + seconds
        name = f"{self.seed} {self.scenario.name}"
        reading = self.start(actors.read_base, place, seconds)
        all_: list[Callable[[], None]] = [
            *(lambda s=s: self.write(place, s, until, f"{name} {s}") for s in place.shards),
            *(
                lambda n=n: self.work(place, f"{name} job {n}", until)
                for n in range(self.scenario.job_threads)
            ),
            *(lambda n=n: self.read(place, f"{name} read {n}", until) for n in range(2)),
        ]
        if self.scenario.lance:
            all_.append(lambda: self.use_lance(place, f"{name} lance", until))
        if self.scenario.clones:
            all_.append(lambda: self.clone(place, f"{name} clone", until))
        self._run(*all_)
        reading.join(10)

    def heal(self, place: Place) -> None:
        """Nobody disturbs any more: all has to be flushed, merged, collected, and right."""
        self.command(place, "rescue --idle 0s --yes", final=True)
        self.command(place, "read", final=True)
        # A table without a key can't be merged.
        merged, _ = self.command(place, "merge --engine local", final=place.keyed)
        if merged in (5, 6, 7, 8) and place.name != "t":
            self.command(place, "init --adopt-clone", final=True)
            self.command(place, "merge --engine local", final=True)
        for line in (
            "index-catchup --engine local",
            "snapshot --engine local",
            "garbage --engine local --execute --grace 0s --allow-short-retention",
            "read",
            "read --consistency snapshot",
            "read --with-wal",
            *(f"read --checkpoint {name}" for name in self.checkpoints if place.name == "t"),
        ):
            self.command(place, line, final=True)
        process = self.start(actors.read_base, place, 0.1)
        process.join(20)
        self.command(place, "verify", final=True)


def _shard(seed: str) -> str:
    return str(uuid.UUID(int=random.Random(seed).getrandbits(128), version=4))


def _choose(chance: random.Random, weights: Any) -> str:
    return str(chance.choices(list(weights), list(weights.values()))[0])


def _options(line: str, chance: random.Random) -> str:
    if line.startswith("watch"):
        return ""
    return " --engine local" + (
        f" --generations-per-commit-max {chance.choice([1, 2])}"
        if line == "merge" and chance.random() < 0.3
        else ""
    )


def _text(file: str) -> str:
    with suppress(OSError):
        return Path(file).read_text(errors="replace")
    return ""


def run_one(name: str, seed: int, seconds: float, folder: Path) -> Verdict:
    """A scenario of a seed, in a folder that is made for it."""
    scenario = SCENARIOS[name](random.Random(f"{name} {seed}"))
    folder.mkdir(parents=True)
    (folder / "scenario.json").write_text(json.dumps({"seed": seed, **scenario.__dict__}, indent=1))
    started = time.monotonic()
    world = World(scenario, seed, folder)
    place = world.make(str(folder / "table"))
    world.torture(place, seconds)
    for healed in world.places:
        world.heal(healed)
    verdict = judge(folder)
    took = time.monotonic() - started
    print(f"== {name}, seed {seed}, {took:.0f} s, {folder}")
    print(f"   exits {dict(sorted(world.codes.items()))}")
    for error in world.errors[:5]:
        print(f"   trouble of our own: {error}")
    show(verdict)
    sys.stdout.flush()
    (folder / "verdict.json").write_text(verdict.as_json())
    if not verdict.findings:
        shutil.rmtree(folder / "table", ignore_errors=True)
    return verdict


def run_many(
    names: Sequence[str], seed: int, seconds: float, round_seconds: float, folder: Path
) -> list[Verdict]:
    """Scenarios in turn, each with the next seed, for about so many seconds."""
    verdicts: list[Verdict] = []
    warm = _PROCESSES.Process(target=now)  # the first one waits for all imports
    warm.start()
    warm.join()
    until = time.monotonic() + seconds
    for number in count():
        left = until - time.monotonic()
        if left < round_seconds and verdicts:
            break
        name = names[number % len(names)]
        place = folder / f"{name}-{seed + number}"
        verdicts.append(run_one(name, seed + number, min(left, round_seconds), place))
    return verdicts
