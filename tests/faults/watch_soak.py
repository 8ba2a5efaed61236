"""`memwal watch` over three kinds of tables that never rest, while what can fail does.

    python -m tests.faults.watch_soak --minutes 30 --seed 1 [--report FILE]

A fault at a time, chosen by the seed; after each the tables have to be fresh again in time. At
checkpoints the writers pause and every row is compared with what they wrote. At the end nothing is
left behind: no lease, no process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.s3proxy import NONE, S3Proxy, Toxics
from tests.faults.soaked import KINDS, Soaked
from tests.support.freshness import LagSampler
from tests.support.nursery import run_memwal
from tests.support.s3server import S3Server
from tests.support.watching import Taken, Watch

_STORM = Toxics(
    latency=0.3, reset_before=0.03, reset_after=0.03, error_before=0.05, error_after=0.03,
    burst=0.01, truncate=0.03,
)  # fmt: skip
_AWAY = Toxics(burst=1.0, burst_seconds=3600)
_EVENTS = {"look", "merge", "index-catchup", "garbage", "error", "late"}
_COLLECT = ("--execute", "--wal", "--retention", "0s", "--grace", "1s", "--allow-short-retention")
_END_SECONDS_MAX = 30.0
# moto shares the machine, and looks through the whole bucket for each listing.
_S3_SLOWER = 4


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, and what is asked of the watch. A fault's own seconds count into no bound."""

    seconds: float
    seed: int
    freshness_seconds: float = 5.0
    every_seconds: float = 1.0
    lease_seconds: float = 15.0
    write_pause_seconds: float = 0.25
    calm_seconds: float = 10.0
    """Between two faults, once the tables are fresh again."""
    fault_seconds: float = 5.0
    faults_per_checkpoint: int = 4
    memory_growth_max: float = 1.3
    """The end's memory against the beginning's, medians of a quarter of the run each."""
    faults: tuple[str, ...] = ()
    """These, in this order, and then the end; none: drawn until the time is over."""
    on_s3: tuple[str, ...] = ("policy",)
    spark: tuple[str, ...] = ()
    """Tables whose engine is Spark."""

    @property
    def back_seconds_max(self) -> float:
        """How long after a fault the tables may be late: a dead holder's lease, and one round."""
        return self.lease_seconds + 2 * self.freshness_seconds + 10 + self._spark_seconds

    @property
    def lag_seconds_max(self) -> float:
        """The worst lag where nothing fails, on a machine that is busy otherwise."""
        return 2 * self.freshness_seconds + 5 + self._spark_seconds

    @property
    def _spark_seconds(self) -> float:
        return 45.0 if self.spark else 0.0


@dataclass(kw_only=True)
class Report:
    """What was seen."""

    faults: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    lag_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """For people and files; memory as a point a sample."""
        start = self.taken[0].at if self.taken else 0.0
        series = [[round(t.at - start, 1), t.processes, t.memory_bytes >> 20] for t in self.taken]
        return {
            **{k: v for k, v in vars(self).items() if k != "taken"},
            "memory_mib_over_time": series,
        }


class Soak:
    """One run: `with Soak(plan, folder) as soak: soak.run()`."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.report = Report()
        self._chance = random.Random(plan.seed)
        self._config = folder / "memwal.toml"
        self._stack = ExitStack()
        self._began = 0.0

    def __enter__(self) -> Soak:
        with ExitStack() as stack:
            if self.plan.on_s3:
                self._server = stack.enter_context(S3Server())
                self._proxy = stack.enter_context(S3Proxy(self._server.endpoint, self.plan.seed))
            self.tables = [self._make_table(name) for name in KINDS]
            self._config.write_text(self._config_text())
            plan = self.plan
            for table in self.tables:
                table.start_writer()
                stack.callback(table.kill_writer)
            self.sampler = LagSampler(
                {table.name: table.stores for table in self.tables},
                every=dict.fromkeys(plan.on_s3, _S3_SLOWER),
            )
            self.sampler.start()
            stack.callback(self.sampler.stop)
            self.watch = stack.enter_context(
                Watch(
                    [
                        *KINDS, "--config", self._config, "--json",
                        "--freshness", f"{plan.freshness_seconds:g}s",
                        "--every", f"{plan.every_seconds:g}s",
                    ],
                    self.folder,
                )
            )  # fmt: skip
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _make_table(self, name: str) -> Soaked:
        uri, options, pause_seconds = str(self.folder / name), {}, self.plan.write_pause_seconds
        if name in self.plan.on_s3:
            pause_seconds *= _S3_SLOWER
            uri = f"s3://{self._server.make_bucket()}/{name}"
            options = self._server.storage_options
        table = Soaked(
            name=name,
            uri=uri,
            options=options,
            folder=self.folder,
            seed=self.plan.seed,
            pause_seconds=pause_seconds,
        )
        table.make()
        return table

    def _config_text(self) -> str:
        lines = ["[defaults]", f"lease_seconds = {self.plan.lease_seconds:g}", ""]
        for table in self.tables:
            lines += [f"[tables.{table.name}]", f"uri = {json.dumps(table.uri)}"]
            if table.name in self.plan.spark:
                lines.append('engine = "spark"')
            if table.options:
                options = self._proxy.options(table.options)
                pairs = ", ".join(f"{k} = {json.dumps(v)}" for k, v in options.items())
                lines.append(f"storage_options = {{ {pairs} }}")
        return "\n".join(lines) + "\n"

    # -- the run

    def run(self) -> Report:
        """All of it. Raises AssertionError for what is not as it should be."""
        self._began = time.monotonic()
        self._wait_until_fresh("start", time.time() + self.plan.freshness_seconds)
        for number, name in enumerate(self._drawn(), start=1):
            self._befall(name)
            if number % self.plan.faults_per_checkpoint == 0:
                self._checkpoint()
        self._checkpoint()
        self._finish()
        return self.report

    def _drawn(self) -> Iterator[str]:
        if self.plan.faults:
            yield from self.plan.faults
            return
        needed = {
            "executor killed": self.plan.spark,
            "store in trouble": self.plan.on_s3,
            "store away": self.plan.on_s3,
        }
        names = [name for name in FAULTS if needed.get(name, True)]
        while time.monotonic() - self._began < self.plan.seconds:
            yield self._chance.choice(names)

    def _befall(self, name: str) -> None:
        """One fault, and the wait for what has to follow."""
        began = time.time()
        told = FAULTS[name](self)
        ended = time.time()
        back = self._wait_until_fresh(name, ended)
        worst = max((lag.seconds for lag in self.sampler.samples if lag.at > began), default=0.0)
        entry = {
            "fault": name,
            "told": told,
            "seconds": round(ended - began, 1),
            "fresh_again_after_seconds": round(back, 1),
            "worst_lag_seconds": round(worst, 1),
        }
        self.report.faults.append(entry)
        print(entry, file=sys.stderr, flush=True)
        self._rest(self.plan.calm_seconds, name, fresh=True)

    def _wait_until_fresh(self, why: str, since: float) -> float:
        """How long until all that was flushed before that time is merged and indexed.

        Raises AssertionError when that takes too long.
        """
        began = time.monotonic()
        while late := self._late_tables(since):
            waited = time.monotonic() - began
            assert waited < self.plan.back_seconds_max, f"{why}: still late: {late}; {self._said()}"
            self._sample()
            time.sleep(0.25)
        return time.monotonic() - began

    def _late_tables(self, since: float) -> list[str]:
        found = [(table.name, self.sampler.latest(table.name)) for table in self.tables]
        return [
            f"{name}: {lag}"
            for name, lag in found
            if lag is None
            or lag.at - lag.seconds < since
            or lag.seconds > self.plan.freshness_seconds
        ]

    def _rest(self, seconds: float, why: str, *, fresh: bool) -> None:
        """Let things go on; with `fresh`, no table may be late by as much as its target."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._sample()
            time.sleep(min(0.5, seconds))
            for lag in filter(None, (self.sampler.latest(table.name) for table in self.tables)):
                most = self.plan.lag_seconds_max
                assert not fresh or lag.seconds < most, f"after {why}: {lag}; {self._said()}"

    def _sample(self) -> None:
        assert self.watch.ended_with() is None, f"the watch has ended: {self._said()}"
        if not self.report.taken or time.time() - self.report.taken[-1].at >= 1.0:
            self.report.taken.append(self.watch.take())

    def _said(self) -> str:
        return f"last events {self.watch.events[-5:]}, stderr: {self.watch.stderr()[-3000:]}"

    # -- checkpoints, and the end

    def _checkpoint(self) -> None:
        """The writers pause; rows are right at once, and all is merged and indexed in time."""
        for table in self.tables:
            table.pause()
            table.check(merged=False)
        began = time.monotonic()
        while waiting := [table.name for table in self.tables if table.waits()]:
            waited = time.monotonic() - began
            assert waited < self.plan.back_seconds_max, f"not merged: {waiting}; {self._said()}"
            self._sample()
            time.sleep(0.25)
        seconds = time.monotonic() - began
        for table in self.tables:
            table.check(merged=True)
        writes = sum(table.writes for table in self.tables)
        self.report.checkpoints.append({"writes": writes, "seconds": round(seconds, 1)})
        print(f"checkpoint: {writes} writes, merged after {seconds:.1f} s", file=sys.stderr)
        self._collect()
        for table in self.tables:
            table.check(merged=True)
            table.resume()

    def _collect(self) -> None:
        """What keeps the tables small in a run of half an hour, beside the watch."""
        done = run_memwal("garbage", *KINDS, *_COLLECT, "--config", self._config, "--json")
        assert done.returncode in (0, 4, 6), done.stderr

    def _finish(self) -> None:
        for table in self.tables:
            table.stop_writer()
        self._end(signal.SIGTERM)
        self._check_events()
        self._check_memory()
        for table in self.tables:
            table.check(merged=False)
            lags = [lag.seconds for lag in self.sampler.samples if lag.table == table.name]
            self.report.lag_seconds[table.name] = {
                "p50": round(statistics.median(lags), 2),
                "worst": round(max(lags), 2),
            }

    def _end(self, number: int) -> float:
        """End the watch as it is meant to be; returns how long that took."""
        began = time.monotonic()
        self.watch.send(number)
        code = self.watch.wait(_END_SECONDS_MAX)
        assert code == 0, f"ended with {code}: {self._said()}"
        seconds = time.monotonic() - began
        self.watch.wait_until_none_left(1.0)
        self._check_leases()
        return seconds

    def _check_leases(self) -> None:
        done = run_memwal("status", *KINDS, "--config", self._config, "--json")
        assert done.returncode == 0, done.stderr
        for table in json.loads(done.stdout)["tables"]:
            lease = table["lease"]
            assert lease is None or lease["state"] != "held", f"{table['table']}: {lease}"

    def _check_events(self) -> None:
        assert not self.watch.bad_lines, self.watch.bad_lines[:5]
        for _, event in self.watch.events:
            assert {"at", "table", "event"} <= event.keys(), event
            kind = event["event"]
            self.report.events[kind] = self.report.events.get(kind, 0) + 1
        assert {"merge", "index-catchup"} <= self.report.events.keys(), self.report.events

    def _check_memory(self) -> None:
        """Level; only a long run can tell."""
        sizes = [taken.memory_bytes for taken in self.report.taken]
        quarter = len(sizes) // 4
        first = statistics.median(sizes[quarter : 2 * quarter])
        last = statistics.median(sizes[-quarter:])
        mib = {"second quarter": first, "last quarter": last, "most": max(sizes)}
        self.report.memory = {name: round(size / 2**20, 1) for name, size in mib.items()}
        if len(sizes) >= 300:
            assert last <= self.plan.memory_growth_max * first, self.report.memory

    # -- faults; each returns what is worth telling

    def kill_worker(self) -> str:
        deadline = time.monotonic() + self.plan.back_seconds_max
        while not (found := self.watch.workers()):
            assert time.monotonic() < deadline, f"no workers: {self._said()}"
            time.sleep(0.05)
        victim = self._chance.choice(found)
        os.kill(victim.pid, signal.SIGKILL)
        return victim.words[-80:]

    def kill_watch(self) -> str:
        self.watch.send(signal.SIGKILL)
        self.watch.wait(10)
        gone = self.watch.wait_until_none_left(_END_SECONDS_MAX)
        self.watch.start()
        return f"its workers were gone after {gone:.1f} s"

    def end_watch(self, number: int) -> str:
        seconds = self._end(number)
        self.watch.start()
        return f"ended after {seconds:.1f} s"

    def trouble_store(self, toxics: Toxics) -> str:
        """Only the tables that are there may suffer."""
        before = self._proxy.requests
        self._proxy.toxics = toxics
        try:
            end = time.monotonic() + self.plan.fault_seconds
            while time.monotonic() < end:
                self._sample()
                time.sleep(0.25)
        finally:
            self._proxy.toxics = NONE
        return f"{self._proxy.requests - before} requests"

    def spoil_config(self) -> str:
        """The old configuration stays, and the watch says so."""
        good, said = self._config.read_text(), len(self.watch.stderr())
        seen = len(self.watch.events)
        self._config.write_text("[defaults\n")
        time.sleep(max(2.0, 2 * self.plan.every_seconds))
        self._config.write_text(good)
        told = self.watch.stderr()[said:] + json.dumps(self.watch.events[seen:])
        assert "memwal.toml" in told, told
        return ""

    def kill_java(self) -> str:
        found = [process for process in self.watch.processes() if process.is_java]
        for process in found:
            os.kill(process.pid, signal.SIGKILL)
        return f"{len(found)} JVMs"


FAULTS: dict[str, Callable[[Soak], str]] = {
    "worker killed": Soak.kill_worker,
    "watch killed": Soak.kill_watch,
    "watch told to end": lambda soak: soak.end_watch(signal.SIGTERM),
    "terminal hung up": lambda soak: soak.end_watch(signal.SIGHUP),
    "store in trouble": lambda soak: soak.trouble_store(_STORM),
    "store away": lambda soak: soak.trouble_store(_AWAY),
    "configuration broken": Soak.spoil_config,
    "executor killed": Soak.kill_java,
}


def main() -> int:
    """Run it as long as is asked for. What is not as it should be is raised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spark", action="append", choices=[*KINDS], default=[])
    parser.add_argument("--report", type=Path, help="a JSON file")
    given = parser.parse_args()
    plan = Plan(seconds=60 * given.minutes, seed=given.seed, spark=tuple(given.spark))
    with (
        tempfile.TemporaryDirectory(prefix="memwal-soak-") as folder,
        Soak(plan, Path(folder)) as soak,
    ):
        try:
            soak.run()
        finally:
            text = json.dumps(soak.report.document(), indent=1)
            print(text)
            if given.report:
                given.report.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
