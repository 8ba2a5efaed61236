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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.s3proxy import NONE, S3Proxy, Toxics
from tests.support.s3server import S3Server
from tests.torture import actors, lsm
from tests.torture.actors import Place
from tests.torture.backups import Backups
from tests.torture.columns import Columns
from tests.torture.drill import drill
from tests.torture.erasures import Erasures
from tests.torture.history import History, now, turns
from tests.torture.judge import Verdict, judge, show
from tests.torture.scenarios import COLLECT_ALL, SCENARIOS, Scenario
from tests.torture.watches import Watches

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.torture.warm", "tests.torture.actors"])
_COMMAND_SECONDS_MAX = 120
_ERASURES = (["erase", "resume"], ["erase", "list"])
_QUIESCE = (
    "quiesce --idle 0s --yes --retention 0s --grace 1s --allow-short-retention --engine local"
)


class World:
    """One table, what is derived from it, and everybody at work on them."""

    def __init__(self, scenario: Scenario, seed: int, folder: Path) -> None:
        self.scenario, self.seed, self.folder = scenario, seed, folder
        (folder / "out").mkdir(parents=True)
        self.history = History(folder)
        self.commands = count(1)
        self.sessions = count(1)
        self.checkpoints: dict[str, list[str]] = defaultdict(list)
        self.codes: Counter[str] = Counter()
        self.errors: list[str] = []
        self.places: list[Place] = []
        self.busy: dict[tuple[str, str], threading.Lock] = {}
        self.at_work = threading.Event()
        self.at_work.set()
        self.moved: dict[str, str] = {}
        """The shard that what was this shard's is written to now."""
        self.proxy: Any = None
        """On the way to the store, if that is bad."""
        self.copy: dict[tuple[Any, ...], list[Any]] = {}
        """What the consumer of the changes has, by key."""

    # -- tables

    def make(self, uri: str, storage: Mapping[str, str]) -> Place:
        scenario = self.scenario
        place = Place(
            name="t", uri=uri, folder=str(self.folder), key=scenario.key, policy=scenario.policy,
            keyed=scenario.keyed, plain=scenario.plain, storage=storage,
            shards=[_shard(f"{self.seed} {n}") for n in range(scenario.shards)],
        )  # fmt: skip
        if scenario.lancedb:  # it alone knows which shard a key is in
            place = replace(place, shards=[f"of key {key}" for key in range(scenario.keys)])
        keys = range(0, scenario.keys * scenario.shards, 2) if scenario.keyed else range(-20, 0)
        dataset = lance.write_dataset(
            place.rows(keys, 0), uri, storage_options=dict(storage),
            enable_stable_row_ids=scenario.follows,
        )  # fmt: skip
        doubled = [key for key in keys if scenario.doubles and key % 3 == 0]
        if doubled:
            dataset.insert(place.rows(doubled, 0))
        if scenario.indexed:
            dataset.create_scalar_index("text", "INVERTED")
            dataset.create_scalar_index("n", "BTREE")
        if scenario.lancedb:
            self._use_lancedb(place, [], spec=scenario.lancedb).join()
        elif not scenario.plain:
            dataset.initialize_mem_wal()
        self.begin(place, [[key, 0] for key in keys], doubled=doubled)
        if scenario.policy:
            self.configure(place)
            self.command(place, "merge --engine local", config=True, final=True)
        if scenario.follows:
            self.follow(place, "--since 0")
        return place

    def configure(self, place: Place, defaults: str = "") -> None:
        """Write what names the table, and its policy."""
        policy = '[tables.t.policy.columns]\ntotal = "sum"\nlog = "list_append"\n'
        (self.folder / "memwal.toml").write_text(
            f'[defaults]\n{defaults}[tables.t]\nuri = "{place.uri}"\n'
            + (policy if self.scenario.policy else "")
        )

    def begin(
        self, place: Place, rows: Sequence[Any], clone: bool = False, doubled: Sequence[int] = ()
    ) -> None:
        self.places.append(place)
        self.busy.update({(place.name, shard): threading.Lock() for shard in place.shards})
        scenario = self.scenario
        self.history.add(
            "table", table=place.name, rows=rows, policy=scenario.policy, keyed=scenario.keyed,
            clone=clone, shards=list(place.shards), doubled=doubled, columns=scenario.columns,
        )  # fmt: skip

    # -- processes

    def start(self, function: Callable[..., None], *given: Any, **named: Any) -> Any:
        process = _PROCESSES.Process(target=function, args=given, kwargs=named, daemon=True)
        process.start()
        return process

    def call(self, function: Callable[..., None], *given: Any) -> None:
        """Let a process do it, and end it if that takes too long."""
        process = self.start(function, *given)
        process.join(60)
        kill(process)

    def hurt(self, process: Any, chance: random.Random, who: str, seconds: float) -> None:
        """Perhaps kill or stall it, at some moment of about as many seconds."""
        fate = chance.random()
        if fate > self.scenario.kills + self.scenario.stalls:
            return
        process.join(chance.random() * seconds)
        is_kill = fate < self.scenario.kills
        self.history.add("stop", who=who, signal="KILL" if is_kill else "STOP")
        if is_kill:
            kill(process)
        elif process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(chance.random() * 1.5)
                os.kill(process.pid, signal.SIGCONT)

    def run(
        self, given: Sequence[str], storage: Mapping[str, str], chance: random.Random | None = None
    ) -> tuple[int, str, str]:
        """Run a command: its exit code, output and errors."""
        out = self.folder / "out" / f"{next(self.commands)}"
        process = self.start(actors.run_command, [*given, "--json"], storage, str(out))
        if chance is not None:
            self.hurt(process, chance, " ".join(given), 0.5)
        process.join(_COMMAND_SECONDS_MAX)
        code = process.exitcode
        if code is None:
            kill(process)
            self.errors.append(f"{given} took more than {_COMMAND_SECONDS_MAX} s")
        if code in (None, 255):  # another thread has just asked for it, and it is lost
            code = -9
        self.codes[f"{given[0]} {code}"] += 1
        text, said = _text(out), _text(Path(f"{out}.err"))
        if code in (0, -9):
            for file in (out, Path(f"{out}.err")):
                file.unlink(missing_ok=True)
        return code, text, said

    def command(
        self,
        place: Place,
        line: str | Sequence[str],
        *,
        chance: random.Random | None = None,
        config: bool = False,
        final: bool = False,
    ) -> tuple[int, str]:
        """Run a command on the table and put it on record."""
        words = line.split() if isinstance(line, str) else list(line)
        given = [*words, *(["--config", str(self.folder / "memwal.toml")] if config else [])]
        at = 2 if words[0] in ("checkpoint", "restore") or words[:2] in _ERASURES else 1
        given.insert(at, place.name if config else place.uri)
        begin = now()
        code, text, said = self.run(given, place.storage, chance)
        facts = {"table": place.name, "begin": begin, "exit": code, "final": final}
        if words[0] != "read":
            told = (said or text if code else "")[-1500:]
            name = "wait" if "--until" in words else words[0]
            self.history.add("job", **facts, name=name, args=words[1:], said=told)
            return code, text
        rows, marks, moment, keys, level = [], [], None, None, "latest"
        if code == 0:
            found = json.loads(text)["tables"][0]
            rows = [[row[name] for name in place.names] for row in found["rows"]]
            with suppress(OSError, ValueError):  # expired meanwhile
                marks = place.marks(found["rows"], place.dataset(found["version"]).schema)
        if "--with-wal" in words:
            level = "wal"
        elif "snapshot" in words and code == 0:
            level = found["consistency"]  # it says so if it could not use one
        elif "--checkpoint" in words:
            moment = self.moments[words[-1]]
        if "--key" in words:
            keys = [self.asked[" ".join(words)]]
        self.history.add(
            "read", **facts, level=level, rows=rows, keys=keys, moment=moment, name=words[-1],
            marks=marks,
            by=" ".join(dict.fromkeys(w for w in words if w.startswith("--"))) or "latest",
            said=said[-1500:] if code not in (0, -9) else "",
        )  # fmt: skip
        return code, text

    def fault(self, what: str, detail: str) -> None:
        """Put on record what is no matter of rows."""
        self.history.add("fault", table=self.places[0].name, what=what, detail=detail)

    # -- actors

    def write(self, place: Place, shard: str, until: float, seed: str) -> None:
        """One session after the other."""
        fresh, moves = count(place.shards.index(shard) * 10**6), count()
        for chance in turns(seed, until):
            self.at_work.wait()
            with self.busy[place.name, shard]:
                if chance.random() < self.scenario.ingests:
                    self._ingest(place, shard, fresh, chance)
                else:
                    self._put(place, shard, fresh, moves, chance)

    def _put(
        self, place: Place, shard: str, fresh: Iterator[int], moves: Iterator[int],
        chance: random.Random,
    ) -> None:  # fmt: skip
        """A session of pylance's writer."""
        session = next(self.sessions)
        steps: list[tuple[str, list[int]]] = []
        own = self._keys(place, shard)
        if self.scenario.moves and chance.random() < 0.7:
            size = self.scenario.moves
            turn = next(moves) % 2
            halves = [own[-size:], own[-2 * size : -size]]
            if chance.random() < 0.5:  # and rows of other keys with it
                steps.append(("put", chance.sample(own, 3)))
            steps += [("put", halves[turn]), ("delete", halves[1 - turn])]
            own = own[: -2 * size] or own[:1]
        for _ in range(chance.randrange(0, 25) if chance.random() >= self.scenario.idles else 0):
            if not place.keyed:
                steps.append(("put", [next(fresh) for _ in range(chance.randint(1, 4))]))
            else:
                what = "delete" if chance.random() < 0.25 else "put"
                size = min(len(own), chance.choice([1, 1, 1, 3]))
                steps.append((what, chance.sample(own, size)))
            steps.append(("sleep", [int(chance.random() * 2 * self.scenario.pause_ms)]))
        if place.plain:
            process = self.start(actors.write_plainly, place, shard, session, steps)
            self.hurt(process, chance, f"session {session}", 0.3 + len(steps) * 0.05)
            process.join(60)
            kill(process)
            return
        rows = self.scenario.memtable_rows
        limits = {"max_memtable_rows": rows} if rows else {}
        process = self.start(
            actors.write, place, shard, self.moved.get(shard, shard), session, steps, **limits
        )
        self.hurt(process, chance, f"session {session}", 0.3 + len(steps) * 0.01)
        process.join(30)
        kill(process)

    def write_by_lancedb(self, place: Place, until: float, seed: str) -> None:
        """LanceDB's client and ingests in turn, which find the shards by the spec that it set."""
        in_turn = self.scenario.lancedb[0] == "bucket"  # else a writer is open in another shard
        for chance in turns(seed, until):
            if chance.random() < self.scenario.ingests:
                self._ingest(place, None, count(), chance)
                continue
            session = next(self.sessions)
            steps = []
            for number in range(chance.randrange(1, 40)):
                op, key = session * 1000 + number, chance.randrange(self.scenario.keys)
                facts = {"table": place.name, "shard": place.shard_of(key), "session": session}
                steps.append(
                    {
                        "op": {**facts, "by": "LanceDB", "id": op, "deletes": False, "keys": [key]},
                        "row": place.rows([key], op).to_pylist()[0],
                        "flushes": in_turn or chance.random() < 0.2,
                        "pause": chance.random() * self.scenario.pause_ms / 1000,
                    }
                )
            process = self._use_lancedb(place, steps)
            self.hurt(process, chance, f"session {session}", 2.0 + len(steps) * 0.1)
            process.join(60)
            kill(process)

    def _use_lancedb(
        self, place: Place, steps: Sequence[Any], spec: Sequence[Any] | None = None
    ) -> Any:
        file = self.folder / "lancedb.json"
        key = [name for name, _ in actors.KEYS[place.key]]
        asked = {"folder": str(self.folder), "key": key, "storage": dict(place.storage)}
        asked["database"] = place.uri.rpartition("/")[0]
        file.write_text(json.dumps({**asked, "spec": spec, "steps": steps}))
        return self.start(actors.write_by_lancedb, str(file))

    def _keys(self, place: Place, shard: str) -> list[int]:
        return [
            k * len(place.shards) + place.shards.index(shard) for k in range(self.scenario.keys)
        ]

    def _ingest(
        self, place: Place, shard: str | None, fresh: Iterator[int], chance: random.Random
    ) -> None:
        """A file, each of its rows an operation; killed, and repeated until it is in."""
        session = next(self.sessions)
        facts = {"table": place.name, "session": session}
        size = chance.randrange(1, 16)
        few = chance.sample(self._keys(place, shard) if shard else range(self.scenario.keys), 3)
        keys = chance.choices(few, k=size) if place.keyed else [next(fresh) for _ in range(size)]
        deletes = place.keyed and chance.random() < 0.2
        ops = [session * 1000 + number for number in range(size)]
        rows = pa.concat_tables(place.rows([key], op) for key, op in zip(keys, ops, strict=True))
        file = self.folder / f"{place.name}-{session}.parquet"
        pq.write_table(rows.append_column("gone", pa.array([deletes] * size)), file)
        for op, key in zip(ops, keys, strict=True):
            self.history.add(
                "op", **facts, shard=shard or place.shard_of(key), by="ingest", id=op,
                deletes=deletes, keys=[key],
            )  # fmt: skip
        line = (
            f"ingest {file} --id s{session} --engine local --delete-column gone "
            "--missing-as-null "
            f"--rows-per-chunk {chance.choice([1, 1, 3, 100])}"
        )
        if shard:
            line += f" --shard {self.moved.get(shard, shard)}"
        for _ in range(chance.randrange(1, 8)):  # if that is not enough, nobody does it again
            if self.command(place, line, chance=chance)[0] == 0:
                for op in ops:
                    self.history.add("ack", id=op)
                begin = now()
                for flushed in [shard] if shard else {place.shard_of(key) for key in keys}:
                    self.history.add("flush", **facts, shard=flushed, begin=begin)
                break
        file.unlink()

    def work(self, place: Place, seed: str, until: float) -> None:
        for chance in turns(seed, until):
            line = _choose(chance, self.scenario.jobs)
            if line == "checkpoint":
                self._checkpoint(place, chance)
            else:
                self.command(place, line + _options(line, chance), chance=chance)
            time.sleep(chance.random() * 0.2)

    def follow(self, place: Place, since: str, chance: random.Random | None = None) -> None:
        """What a consumer does that may die anywhere: read, apply in any order, then commit."""
        code, text = self.command(place, f"changes {since}", chance=chance, final=chance is None)
        if code != 0:
            return
        found = json.loads(text)["tables"][0]
        rows, until = found["rows"], found["until"]
        dies = chance is not None and chance.random() < 0.3
        if chance is not None:
            chance.shuffle(rows)
        for row in rows[: len(rows) // 2] if dies else rows:
            key = tuple(row[name] for name, _ in actors.KEYS[place.key])
            if row["_change"] == "delete":
                self.copy.pop(key, None)
            else:
                self.copy[key] = [row[name] for name in place.names]
        if dies:
            return
        begin, base = now(), None
        with suppress(OSError, ValueError):  # expired, which the cursor has to prevent
            base = place.told(place.dataset(until).to_table())
        rows = list(self.copy.values())
        self.history.add("copy", table=place.name, begin=begin, version=until, rows=rows, base=base)
        self.command(place, f"changes --cursor mart --commit {until}", chance=chance)

    def _follow(self, place: Place, seed: str, until: float) -> None:
        for chance in turns(seed, until):
            self.follow(place, "--cursor mart", chance)

    def _checkpoint(self, place: Place, chance: random.Random) -> None:
        kept = self.checkpoints[place.name]
        if len(kept) > 2:
            name = kept.pop(chance.randrange(len(kept)))
            self.command(place, f"checkpoint drop {name}", chance=chance)
            return
        name, begin = f"c{next(self.commands)}", now()
        code, _ = self.command(place, f"checkpoint create {name}", chance=chance)
        if code == 0:
            self.moments[name] = (begin, now())
            kept.append(name)

    def read(self, place: Place, seed: str, until: float) -> None:
        for chance in turns(seed, until):
            line = _choose(chance, self.scenario.reads)
            words = ["read", *line.split()]
            if line == "--checkpoint":
                names = list(self.checkpoints[place.name])
                if not names:
                    continue
                words.append(chance.choice(names))
            if "--key" in words:
                key = chance.randrange(self.scenario.keys * self.scenario.shards)
                words.remove("--key")
                words += place.key_words(key)
                self.asked[" ".join(words)] = key
            self.command(place, words, chance=chance if chance.random() < 0.2 else None)

    def use_lance(self, place: Place, seed: str, until: float) -> None:
        for chance in turns(seed, until):
            what = _choose(chance, self.scenario.lance)
            argument = 5
            if what == "restore":  # what a merge did is undone
                argument = place.dataset().version
                while self.command(place, "merge --engine local")[0] == 4:
                    pass
            self.call(actors.upkeep, place, what, argument, chance.randrange(10**6))
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
        twin = replace(place, name=kind, uri=uri)
        self.begin(twin, place.told(place.dataset(version).to_table()), clone=True)
        self._run(
            *(lambda s=s: self.write(twin, s, until, f"{seed} {s}") for s in twin.shards),
            lambda: self.work(twin, f"{seed} work", until),
            lambda: self.read(twin, f"{seed} read", until),
        )

    def renew(self, place: Place, seed: str, until: float) -> None:
        """Bring the table to rest, and initialise its MemWAL again, beside all jobs."""
        for chance in turns(seed, until):
            time.sleep(1 + 2 * chance.random())
            with self.rest():
                self._renew(place, chance)

    @contextmanager
    def rest(self) -> Iterator[None]:
        """No writer is at work."""
        self.at_work.clear()
        try:
            with ExitStack() as writers:
                for busy in self.busy.values():
                    writers.enter_context(busy)
                yield
        finally:
            self.at_work.set()

    def _renew(self, place: Place, chance: random.Random) -> None:
        for _ in range(20):
            if self.command(place, _QUIESCE, chance=chance)[0] == 0:
                break
            time.sleep(0.2)
        else:
            return
        self.call(actors.upkeep, place, "drop MemWAL", 0, chance.randrange(10**6))
        for left in reversed(range(10)):
            hurts = chance if left > 7 else None
            if self.command(place, "init", chance=hurts, final=not left)[0] == 0:
                break
        if chance.random() < 0.7:  # else the writers go on in the former shards
            self.moved = {shard: _shard(f"{shard} {chance.random()}") for shard in place.shards}

    # -- all of it

    def _run(self, *actors_: Callable[[], None]) -> None:
        def run(actor: Callable[[], None]) -> None:
            try:
                actor()
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                scenario = self.scenario
                if scenario.watched or scenario.backups or scenario.columns or scenario.erases:
                    self.fault("an actor failed", self.errors[-1])

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
        reading = [self.start(actors.read_base, place, seconds)]
        if self.scenario.suits_lsm_scanner:
            reading.append(self.start(lsm.read_lsm, place, seconds))
        all_: list[Callable[[], None]] = [
            *(
                [lambda: self.write_by_lancedb(place, until, f"{name} lancedb")]
                if self.scenario.lancedb
                else [lambda s=s: self.write(place, s, until, f"{name} {s}") for s in place.shards]
            ),
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
        if self.scenario.follows:
            all_.append(lambda: self._follow(place, f"{name} follow", until))
        if self.scenario.renews:
            all_.append(lambda: self.renew(place, f"{name} renew", until))
        if self.scenario.watched:
            all_.append(lambda: Watches(self, place).work(f"{name} watches", until))
        if self.scenario.backups:
            self.backups = Backups(world=self, place=place)
            all_.append(lambda: self.backups.work(f"{name} backups", until))
        if self.scenario.columns:
            all_.append(lambda: Columns(world=self, place=place).work(f"{name} columns", until))
        if self.scenario.erases:
            self.erasures = Erasures(world=self, place=place)
            all_.append(lambda: self.erasures.work(f"{name} erasures", until))
        if self.proxy:
            all_.append(lambda: self.trouble(f"{name} store", until))
        self._run(*all_)
        for process in reading:
            process.join(10)

    def trouble(self, seed: str, until: float) -> None:
        """The way to the store is bad for a while, and good again."""
        for chance in turns(seed, until):
            self.proxy.toxics = Toxics(**self.scenario.toxics)
            time.sleep(1 + 2 * chance.random())
            self.proxy.toxics = NONE
            time.sleep(chance.random())
            self.history.add("upkeep", table="t", name="toxics", argument=dict(self.proxy.faults))

    def read_base(self, place: Place) -> None:
        """Read the base as it is now."""
        self.call(actors.read_base, place, 0.05)

    def heal(self, place: Place) -> None:
        """Nobody disturbs any more: all has to be flushed, merged, collected, and right."""
        if place.plain:
            self._heal_plain(place)
            return
        self.command(place, "rescue --idle 0s --yes", final=True)
        self.command(place, "read", final=True)
        # A table without a key can't be merged.
        merged, _ = self.command(place, "merge --engine local", final=place.keyed)
        if merged in (5, 6, 7, 8) and place.name != "t":
            self.command(place, "init --adopt-clone", final=True)
            self.command(place, "merge --engine local", final=place.keyed)
        for line in (
            "index-catchup --engine local",
            "snapshot --engine local",
            "garbage --engine local --execute --grace 0s --allow-short-retention",
            "read",
            "read --consistency snapshot",
            "read --with-wal",
            *(f"read --checkpoint {name}" for name in self.checkpoints[place.name]),
        ):
            self.command(place, line, final=True)
        if self.scenario.follows:
            self.follow(place, "--cursor mart")
        self.read_base(place)
        if self.scenario.backups:
            self.backups.back_up("last")
            self.backups.look(again=True)
        if self.scenario.erases:
            self.erasures.end()
        if self.scenario.comes_to_rest:
            self._empty(place)
        self.command(place, "verify", final=True)

    def _heal_plain(self, place: Place) -> None:
        for line in (
            "maintain --compaction always --engine local",
            "read",
            "read --filter n>=0",
            "read --search text=row",
            *(f"read --checkpoint {name}" for name in self.checkpoints[place.name]),
        ):
            self.command(place, line, final=True)
        self.read_base(place)
        for index in ("n_idx", "text_idx"):
            lacking = place.dataset().stats.index_stats(index)["num_unindexed_rows"]
            if lacking:
                self.fault("not indexed", f"{index}: {lacking} rows")
        self._empty(place)
        self.command(place, "verify", final=True)

    def _empty(self, place: Place) -> None:
        """All goes that nothing needs."""
        for name in self.checkpoints[place.name]:
            self.command(place, f"checkpoint drop {name}", final=True)
        for _ in range(3):
            self.command(place, f"garbage {COLLECT_ALL}", final=True)
        left = lsm.count_stored(place)
        if left["generations"] or left["versions"] > 5:
            self.fault("a leak", str(left))
        # Of all that was done to it, only writers may claim a shard, and these.
        claiming = ("ingest", "rescue", "quiesce", "schema", "erase")
        runs = sum(n for code, n in self.codes.items() if code.startswith(claiming))
        claimers = next(self.sessions) + runs * len(place.shards)
        if left["claims"] > claimers and not self.scenario.lancedb:
            self.fault("a shard was claimed by others", f"{left}, {claimers} by writers")


def _shard(seed: str) -> str:
    return str(uuid.UUID(int=random.Random(seed).getrandbits(128), version=4))


def _choose(chance: random.Random, weights: Any) -> str:
    return str(chance.choices(list(weights), list(weights.values()))[0])


def _options(line: str, chance: random.Random) -> str:
    if line.split()[0] in ("watch", "verify", "status"):
        return ""
    return " --engine local" + (
        f" --generations-per-commit-max {chance.choice([1, 2])}"
        if line.startswith("merge") and chance.random() < 0.3
        else ""
    )


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""


def kill(process: Any) -> None:
    """End a process that may have ended, which is not known here yet."""
    with suppress(ProcessLookupError):
        process.kill()
    process.join()


def run_one(name: str, seed: int, seconds: float, folder: Path, drills: int = 0) -> Verdict:
    """A scenario of a seed, in a folder that is made for it."""
    scenario = SCENARIOS[name](random.Random(f"{name} {seed}"))
    folder.mkdir(parents=True)
    (folder / "scenario.json").write_text(json.dumps({"seed": seed, **scenario.__dict__}, indent=1))
    started = time.monotonic()
    world = World(scenario, seed, folder)
    with ExitStack() as stack:
        uri, storage = str(folder / "t.lance"), {}
        if scenario.on_s3:
            server = stack.enter_context(S3Server())
            uri, storage = f"s3://{server.make_bucket()}/t.lance", server.storage_options
            if scenario.toxics:
                world.proxy = stack.enter_context(S3Proxy(server.endpoint, seed))
                storage = world.proxy.options(storage)
        place = world.make(uri, storage)
        world.torture(place, seconds)
        if drills and scenario.keyed and not (scenario.on_s3 or scenario.doubles or place.plain):
            drill(world, place, drills)
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
        for name in ("t.lance", "drills", "backups", "taken", "restored"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return verdict


def run_many(
    names: Sequence[str],
    seed: int,
    seconds: float,
    round_seconds: float,
    folder: Path,
    drills: int = 0,
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
        verdicts.append(run_one(name, seed + number, min(left, round_seconds), place, drills))
    return verdicts
