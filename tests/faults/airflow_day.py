"""A day of a lake in minutes: the shipped DAGs on a real Airflow, while what can fail does.

    PYTHONPATH=scripts .venv-airflow/bin/python -m tests.faults.airflow_day \\
        --minutes 10 --tables 20 --seed 1 [--deferral off|on|both] [--report FILE]

Tables of four kinds are written to all the time; four more are damaged, unreachable, held by
somebody who never lets go, or missing. Scheduler, triggerer, workers, tasks and jobs are killed
with -9 at moments that the seed chooses, and started again as a service would be. Then the writers
stop, and once nothing is left to do all of it is looked at (`day_checks.py`). Exit code 1 tells of
findings.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from local_airflow import leftovers
from local_airflow.home import JOBS_BIN, ROOT, AirflowHome
from local_airflow.rest import AirflowClient
from local_airflow.server import AirflowServer

from tests.airflow.tables import TableMaker
from tests.faults.day_checks import (
    JOBS,
    Event,
    Task,
    check_events,
    check_runs,
    check_status,
    check_tasks,
    check_verified,
    find_silent,
)

VICTIMS = ("job", "worker", "scheduler", "task", "triggerer")
_ANNOUNCED = {
    name: JOBS[name] for name in ("memwal_merge", "memwal_index_catchup", "memwal_garbage")
}
_AGAIN = ("sh", "-c", 'while :; do "$@"; sleep 1; done', "again")
_MEMWAL = str(JOBS_BIN / "memwal")
# A day's garbage has to go within minutes, which no DAG may ask for.
_COMMAND = f"""\
#!/bin/sh
case "$1" in garbage) shift; set -- garbage --allow-short-retention "$@";; esac
exec {_MEMWAL} "$@"
"""
_EVERY_MINUTES = {
    "merge_schedule": 1,
    "garbage_schedule": 2,
    "index_catchup_schedule": 3,
    "snapshot_schedule": 4,
    "compaction_schedule": 5,
    "verify_schedule": 5,
}
# Two cores start a task a second, at best: with more tables there are fewer rounds.
_TABLES_PER_ROUND = 7
_DAGS = {
    "garbage_execute": True,
    "garbage_wal": True,
    "retention": "0s",
    "grace": "2s",
    "retries": 3,
    "retry_delay_seconds": 5,
    "held_seconds_max": 60,
    "defer_after_seconds": 2,
    "execution_timeout_seconds": 300,
}
_DEFAULTS = {
    "engine": "local",
    "due_generations_min": 2,
    "due_age_seconds_min": 20,
    "lease_seconds": 15,
    "runs_kept_max": 4000,
    # A store that is silent would take more than a minute of each try.
    "store_seconds_max": 10,
}
# What else would take its minutes before anybody noticed a death.
_AIRFLOW = {
    "AIRFLOW__CORE__PARALLELISM": "8",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "15",
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, how much, and how long to wait for the end."""

    seconds: float
    tables: int
    seed: int
    deferral: str
    kills: int
    write_pause_seconds: float
    settle_seconds: float


@dataclass(kw_only=True)
class Report:
    """What was seen."""

    kills: list[str] = field(default_factory=list)
    writes: dict[str, int] = field(default_factory=dict)
    still_after_seconds: float = 0.0
    runs: dict[str, dict[str, int]] = field(default_factory=dict)
    tasks: dict[str, dict[str, int]] = field(default_factory=dict)
    retried: int = 0
    events: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    run_folders_left: int = 0
    findings: list[str] = field(default_factory=list)


class Day:
    """One run: `with Day(plan, folder) as day: day.run()`."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.report = Report()
        self._chance = random.Random(plan.seed)
        self._stack = ExitStack()
        self._config = folder / "memwal.toml"
        rounds = max(1, round(plan.tables / _TABLES_PER_ROUND))
        self._settings: dict[str, Any] = {
            **_DAGS,
            **{name: f"*/{n * rounds} * * * *" for name, n in _EVERY_MINUTES.items()},
            "deferrable": plan.deferral == "on",
        }

    def __enter__(self) -> Day:
        with ExitStack() as stack:
            self.lake = stack.enter_context(TableMaker("tests.faults.day_lake"))
            lake = self.folder / "lake"
            lake.mkdir()
            self.tables = self.lake.ask(
                "make",
                folder=str(lake),
                tables=self.plan.tables,
                seed=self.plan.seed,
                pause_seconds=self.plan.write_pause_seconds,
            )
            self._configure()
            command = self.folder / "memwal"
            command.write_text(_COMMAND)
            command.chmod(0o755)
            home = AirflowHome(
                folder=self.folder / "airflow",
                dags=ROOT / "dags",
                config_file=self._config,
                settings={**_AIRFLOW, "AIRFLOW__MEMWAL__COMMAND": str(command)},
            )
            passwords = {"admin": "admin", "viewer": "viewer"}
            home.prepare(passwords)
            self.server = stack.enter_context(AirflowServer(home, passwords, prefix=_AGAIN))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def troubles(self) -> dict[str, str | None]:
        """What is wrong with each table."""
        return {table["name"]: table["trouble"] for table in self.tables}

    @property
    def healthy(self) -> list[str]:
        """Those with nothing wrong."""
        return [name for name, trouble in self.troubles.items() if trouble is None]

    @property
    def client(self) -> AirflowClient:
        """Of the administrator."""
        return self.server.client()

    def _configure(self, **changes: Any) -> None:
        """Write the configuration, whole at any time, with these settings of the DAGs changed."""
        self._settings |= changes
        parts: list[tuple[str, dict[str, Any]]] = [
            ("defaults", _DEFAULTS),
            ("airflow", self._settings),
        ]
        for table in self.tables:
            parts.append((f"tables.{table['name']}", {"uri": table["uri"]}))
            if table["options"]:
                parts.append((f"tables.{table['name']}.storage_options", table["options"]))
        # JSON's texts, numbers and truth values are TOML's too.
        texts = (
            "\n".join([f"[{head}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items()), ""])
            for head, values in parts
        )
        new = self._config.with_suffix(".new")
        new.write_text("\n".join(texts))
        new.replace(self._config)

    # -- the day

    def run(self) -> Report:
        """All of it."""
        self.lake.ask("start")
        self.client.wait_for_dags(*JOBS)
        for dag_id in JOBS:
            self.client.set_paused(dag_id, False)
        say("the day begins")
        self._live()
        self.report.writes = self.lake.ask("pause")
        say("the writers have stopped")
        began = time.monotonic()
        self._wait_until_merged()
        self._configure(**dict.fromkeys(_EVERY_MINUTES, ""))
        self._wait_until_over()
        self.report.still_after_seconds = round(time.monotonic() - began, 1)
        self._look_at_airflow()
        self._look_at_tables()
        self.server.stop()
        left = leftovers.find_processes(self.server.home.folder)
        self._find([f"processes left: {left}"] if left else [])
        folders = [*(self.server.home.folder / "runs").iterdir()]
        self.report.run_folders_left = len(folders)
        return self.report

    def _live(self) -> None:
        """Let the time go by, and kill at the moments that were drawn."""
        plan, began = self.plan, time.monotonic()
        names = [VICTIMS[number % len(VICTIMS)] for number in range(plan.kills)]
        self._chance.shuffle(names)
        moments = sorted(self._chance.uniform(0.1, 0.9) * plan.seconds for _ in names)
        events: list[tuple[float, str]] = [*zip(moments, names, strict=True)]
        if plan.deferral == "both":
            events.append((plan.seconds / 2, "deferral"))
        for at, name in [*sorted(events), (plan.seconds, "")]:
            time.sleep(max(0.0, began + at - time.monotonic()))
            if name == "deferral":
                self._configure(deferrable=True)
                say("from here on jobs are deferred")
            elif name:
                self._kill(name)

    def _kill(self, name: str) -> None:
        """Kill one such process, as soon as there is one."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = [p for p in self.server.processes() if is_a(name, p)]
            if found:
                victim = self._chance.choice(found)
                with suppress(psutil.NoSuchProcess):
                    words = " ".join(victim.cmdline())[-120:]
                    victim.kill()
                    self.report.kills.append(f"{name}: {words}")
                    say(f"killed a {name}: {words}")
                    return
            time.sleep(0.05)
        self.report.kills.append(f"{name}: none was there")

    # -- the end

    def _wait_until_merged(self) -> None:
        """Until the healthy tables have nothing left to be done, or that takes too long."""
        end = time.monotonic() + self.plan.settle_seconds
        while time.monotonic() < end:
            statuses = self._ask_memwal("status", *self.healthy)
            if not any(check_status(s["table"], {**s, "lease": None}) for s in statuses):
                say("merged, indexed and collected")
                return
            time.sleep(5)

    def _wait_until_over(self) -> None:
        """Until no run is under way, or that takes too long."""
        end = time.monotonic() + self.plan.settle_seconds
        quiet = 0
        while time.monotonic() < end and quiet < 3:
            states = {run["state"] for run in self._list("/dags/~/dagRuns", "dag_runs")}
            # The last clock's run may not be there yet.
            quiet = quiet + 1 if states <= {"success", "failed"} else 0
            time.sleep(10)
        say("no run is under way" if quiet else "runs are still under way")

    def _look_at_airflow(self) -> None:
        report = self.report
        runs = self._list("/dags/~/dagRuns", "dag_runs")
        states = {(run["dag_id"], run["dag_run_id"]): run["state"] for run in runs}
        report.runs = _count((dag_id, state) for (dag_id, _), state in states.items())
        tasks = [
            self._read_task(task)
            for task in self._list("/dags/~/dagRuns/~/taskInstances", "task_instances")
        ]
        report.tasks = _count((f"{t.dag_id}.{t.task_id}", str(t.state)) for t in tasks)
        report.retried = sum(max(0, task.tries - 1) for task in tasks)
        events = [
            Event(
                asset=str(event["name"]),
                dag_id=str(event["source_dag_id"]),
                run_id=str(event["source_run_id"]),
                extra=event["extra"] or {},
            )
            for event in self._list("/assets/events", "asset_events")
        ]
        report.events = dict(
            Counter(event.asset.rpartition(" ")[0] or "of a table's own" for event in events)
        )
        records = {name: self._ask_memwal("runs", name)[0]["runs"] for name in self.healthy}
        report.jobs = dict(Counter(r["job"] for those in records.values() for r in those))
        unseen = {(t.dag_id, t.run_id, t.table) for t in tasks if t.table and t.tries > 1}
        self._find(check_tasks(tasks, self.troubles))
        self._find(check_runs(states, tasks))
        self._find(check_events(events, records, self.troubles, unseen))
        self._find(find_silent(events, records, _ANNOUNCED))
        self._find([f"no {dag_id} ran" for dag_id in JOBS if dag_id not in report.runs])

    def _look_at_tables(self) -> None:
        for status in self._ask_memwal("status", *self.healthy):
            self._find(check_status(status["table"], status))
        for report in self._ask_memwal("verify", *self.healthy):
            self._find(check_verified(report["table"], report))
        for name in self.healthy:
            self._find([text] if (text := self.lake.ask("check", name=name)) else [])

    def _find(self, texts: Sequence[str]) -> None:
        for text in texts:
            say(f"FOUND {text}")
        self.report.findings += texts

    # -- what is asked

    def _ask_memwal(self, *words: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [_MEMWAL, *words, "--json", "--config", str(self._config)],
            capture_output=True,
            text=True,
            check=False,
        )
        tables: list[dict[str, Any]] = json.loads(done.stdout)["tables"]
        return tables

    def _list(self, path: str, key: str) -> list[dict[str, Any]]:
        """All pages, oldest first."""
        found: list[dict[str, Any]] = []
        order = "timestamp" if key == "asset_events" else "id"
        while True:
            page = self.client.get(path, limit=100, offset=len(found), order_by=order)[key]
            found += page
            if len(page) < 100:
                return found

    def _read_task(self, task: dict[str, Any]) -> Task:
        # A task that is tried again has lost its name, and its fields with the table's.
        name = task["rendered_map_index"] or (task["rendered_fields"] or {}).get("tables")
        log = self._read_log(task) if task["state"] == "failed" else []
        errors = [d["exc_value"] for line in log for d in line.get("error_detail") or []]
        ran = [str(line["event"]) for line in log if str(line.get("event")).startswith("Running ")]
        if ran and not task["rendered_map_index"]:
            name = ran[-1].rpartition(" -- ")[2]
        return Task(
            dag_id=task["dag_id"],
            run_id=task["dag_run_id"],
            task_id=task["task_id"],
            map_index=task["map_index"],
            state=task["state"],
            tries=task["try_number"],
            table=str(name) if task["map_index"] >= 0 and name else None,
            error=str(errors[-1]) if errors else "",
            killed=any(line.get("signal_name") == "SIGKILL" for line in log),
        )

    def _read_log(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        """The lines of the last try."""
        path = f"/dags/{task['dag_id']}/dagRuns/{task['dag_run_id']}/taskInstances"
        path += f"/{task['task_id']}/logs/{task['try_number']}"
        content = self.client.get(path, map_index=task["map_index"])["content"]
        return [line for line in content if isinstance(line, dict)]


def is_a(name: str, process: psutil.Process) -> bool:
    """Whether it is what a kill is meant for."""
    try:
        words = process.cmdline()
        title = " ".join(words)
        if name == "worker":
            return title.startswith("airflow worker -- LocalExecutor: ") and "<idle>" not in title
        if name == "task":
            return title.startswith("airflow worker -- ") and "LocalExecutor" not in title
        if name == "job":
            return _MEMWAL in words and any(job in words for job in JOBS.values())
        parent = process.parent()
        return name in words and words[0] != "sh" and parent is not None and parent.name() == "sh"
    except psutil.Error:
        return False


def _count(pairs: Any) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for name, state in pairs:
        found.setdefault(name, Counter())[state] += 1
    return {name: dict(states) for name, states in sorted(found.items())}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    """One day; 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tables", type=int, default=20, help="four of them in trouble")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deferral", choices=("off", "on", "both"), default="both",
                        help="both: on from half time (default)")  # fmt: skip
    parser.add_argument("--kills", type=int, help="default: one a minute, at least five")
    parser.add_argument("--write-pause-seconds", type=float, default=2.0, help="of each writer")
    parser.add_argument("--settle-minutes", type=float, help="default: twice the day's")
    parser.add_argument("--report", type=Path, help="a file for all of it, as JSON")
    parser.add_argument("--keep", type=Path, help="an empty folder to work in, which stays")
    given = parser.parse_args()
    if given.tables < 5:
        parser.error("--tables: five at least, as four are in trouble")
    plan = Plan(
        seconds=given.minutes * 60,
        tables=given.tables,
        seed=given.seed,
        deferral=given.deferral,
        kills=max(5, int(given.minutes)) if given.kills is None else given.kills,
        write_pause_seconds=given.write_pause_seconds,
        settle_seconds=60 * (given.settle_minutes or max(10.0, 2 * given.minutes)),
    )
    with ExitStack() as stack:
        folder = given.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="memwal-airflow-day-"))
        )
        folder.mkdir(parents=True, exist_ok=True)
        with Day(plan, folder.absolute()) as day:
            report = day.run()
    if given.report:
        given.report.write_text(json.dumps(vars(report), indent=2) + "\n")
    for name, value in vars(report).items():
        if name != "findings":
            print(f"{name}: {json.dumps(value)}")
    print(f"{len(report.findings)} findings")
    for text in report.findings:
        print(f"- {text}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
