"""Documents as `memwal status` and `memwal runs` print them, and who answers the page with them."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.page.source import Order, read_order
from memwal_airflow.processes.process import Output

from memwal.clock import SystemClock

Json = dict[str, Any]
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MIB = 1 << 20
SAMPLES: Json = json.loads(Path(__file__).with_suffix(".json").read_text())


@dataclass(frozen=True)
class User:
    """Whoever looks, as Airflow's auth managers describe them."""

    name: str

    def get_name(self) -> str:
        return self.name


class StandingClock(SystemClock):
    """What is looked at again and is the same stays so to the last digit."""

    def now_nanos(self) -> int:
        return round(NOW.timestamp() * 1e9)


class Answers:
    """The page's `Runner`, without a process: what was put for a table, asked for by any job.

    Names lead to behaviours: a look at `hangs-x` takes all of its time, which is over as soon as
    `gate` is set; `late-x` only hangs when it is asked for its runs; `garbles` makes no sense.
    """

    def __init__(self, folder: Path) -> None:
        self.config = folder / "memwal.toml"
        self.options: dict[str, str] = {}
        self.documents: dict[tuple[str, str], Json] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.is_there = True
        self.is_closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.hanging_at_once: list[int] = []
        self._hanging = 0

    def name_tables(self, *names: str, **uris: str) -> None:
        """What the configuration file names from here on."""
        places = {**{name: f"s3://lake/{name}" for name in names}, **uris}
        # JSON's texts are TOML's too.
        lines = [
            f"[tables.{json.dumps(name)}]\nuri = {json.dumps(at)}" for name, at in places.items()
        ]
        self.config.write_text("\n".join(lines))

    def put(self, table: Json, runs: Sequence[Json] = ()) -> None:
        """Let it answer for a table."""
        name = table["table"]
        self.documents["status", name] = table
        history = {"table": name, "outcome": "done", "error": None, "runs": list(runs)}
        self.documents["runs", name] = history

    def order(self) -> Order:
        """For a feed: the tables of the file, and how to ask for them."""
        found = {"command": "memwal", "config_file": str(self.config)}
        return read_order(lambda: JobsEnvironment(**found, storage_options=self.options))  # type: ignore[arg-type]

    def asked(self, job: str = "status") -> list[tuple[str, ...]]:
        """The tables of each look so far."""
        return [names for called, names in self.calls if called == job]

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        seconds_max: float,
        stdout_bytes_max: int,
    ) -> Output:
        """As `Runner.run`."""
        job, names = argv[1], tuple(argv[argv.index("--") + 1 :])
        assert job in ("status", "runs"), "the page only looks"
        if not self.is_there:
            return Output(why="can't start memwal: No such file or directory", started=False)
        self.calls.append((job, names))
        hanging = ("hangs", "late") if job == "runs" else "hangs"
        if any(name.startswith(hanging) for name in names):
            self._hang()
            return Output(why=f"no answer within {seconds_max:g} s")
        if "garbles" in names:
            said = b"secret hunter2-hunter2 at s3://user:pass@lake/x"
            return Output(stdout=b"{not json", stderr=said, exit_code=1)
        tables = [self.documents[job, n] for n in names if (job, n) in self.documents]
        for limit in (int(a.partition("=")[2]) for a in argv if a.startswith("--limit=")):
            tables = [{**table, "runs": table["runs"][:limit]} for table in tables]
        document = {"job": job, "outcome": "done", "seconds": 0.1, "tables": tables}
        return Output(stdout=json.dumps(document).encode(), exit_code=0)

    def _hang(self) -> None:
        self._hanging += 1
        self.hanging_at_once.append(self._hanging)
        self.gate.wait(60)
        self._hanging -= 1

    def close(self) -> None:
        """As `Runner.close`, which ends what runs."""
        self.is_closed = True
        self.gate.set()


def settle() -> None:
    """Wait until feeds and details have nothing left to do."""
    deadline = time.monotonic() + 60
    while any(thread.name.startswith("memwal-page") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


def shard(number: int, **changes: Any) -> Json:
    """A shard that is merged up to generation 6, with `pending` generations above."""
    pending, number_of_entries = changes.pop("pending", 0), 20 + number % 7
    found: Json = {
        "shard_id": str(UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC834) % (1 << 128))),
        "writer_epoch": 3 + number % 4,
        "current_generation": 7 + pending,
        "pending_generations": list(range(7, 7 + pending)),
        "pending_rows": 400 * pending,
        "pending_bytes": 3 * MIB * pending,
        "oldest_pending_flushed_at": ago(minutes=4) if pending else None,
        "wal_entries": number_of_entries,
        "wal_bytes": number_of_entries * 31_000,
        "due_reasons": [f"{pending} pending generations >= 4"] if pending >= 4 else [],
    }
    return {**SAMPLES["shard"], **found, **changes}


def unreachable(name: str) -> Json:
    """A table of a status document whose store did not answer."""
    error = f"list s3://lake/{name}/: gave up after 3 attempts"
    return {"table": name, "outcome": "failed", "error": error, "unreachable": True}


def status(name: str, shards: list[Json] | None = None, **changes: Any) -> Json:
    """One table of a status document."""
    shards = [shard(n) for n in range(3)] if shards is None else shards
    due = [f"shard {s['shard_id'][:8]}: {r}" for s in shards for r in s["due_reasons"]]
    needs = {"unreadable": "verify", "silent": "rescue", "due for a merge": "merge"}
    counts = {
        "unreadable": sum(bool(s["error"]) for s in shards),
        "silent": sum(s["abandoned"] for s in shards),
        "due for a merge": sum(bool(s["due_reasons"]) for s in shards),
    }
    attention = [
        {
            "what": f"{number} shard{'s' * (number > 1)} {what}",
            "command": f"memwal {needs[what]} {name}",
        }
        for what, number in counts.items()
        if number
    ]
    broken = [f"shard {s['shard_id']}: {s['error']}" for s in shards if s["error"]]
    waiting = [s for s in shards if s["oldest_pending_flushed_at"]]
    flushed = [datetime.fromisoformat(s["oldest_pending_flushed_at"]) for s in waiting]
    known: Json = {
        "pending_generations": sum(len(s["pending_generations"]) for s in shards),
        "pending_bytes": sum(s["pending_bytes"] or 0 for s in shards),
        "oldest_pending_seconds": (NOW - min(flushed, default=NOW)).total_seconds(),
        "abandoned_shards": sum(s["abandoned"] for s in shards),
        "unflushed_seconds": max((s["unflushed_seconds"] or 0.0 for s in shards), default=0.0),
    }
    abandoned = [
        f"shard {s['shard_id']} looks abandoned: {s['unflushed_wal_entries']} WAL entries"
        for s in shards
        if s["abandoned"]
    ]
    changes["warnings"] = [*changes.get("warnings", []), *abandoned]
    sums = {"wal_bytes": sum(s["wal_bytes"] or 0 for s in shards)}
    found: Json = {
        "table": name,
        "uri": f"s3://lake/{name}",
        "error": "; ".join(broken) or None,
        **({} if broken else known),
        "due": bool(due),
        "due_reasons": due,
        "attention": attention,
        "index_lag_generations": 0,
        "storage": {"base_bytes": 812 * MIB, **sums},
        "reclaimable_bytes": 36 * MIB,
        "shards": shards,
        "snapshot": {"taken_at": ago(minutes=6), "num_shards": len(shards)},
    }
    return {**SAMPLES["status"], **found, **changes}


def lease(state: str = "held", **changes: Any) -> Json:
    """A claim on a table's lease."""
    times = {"acquired_at": ago(minutes=1), "expires_at": ago(minutes=-4)}
    return {**SAMPLES["lease"], "state": state, **times, **changes}


def run(job: str = "merge", minutes_ago: float = 5, **changes: Any) -> Json:
    """A run record."""
    seconds, task = float(changes.get("seconds", 8.4)), job.replace("-", "_")
    of_airflow = {"dag_id": f"memwal_{task}", "task_id": task, "map_index": 3, "try_number": 1}
    found: Json = {
        "run_id": f"{zlib.crc32(f'{job}{minutes_ago}'.encode()):032x}",
        "airflow": {**of_airflow, "run_id": "scheduled__2026-11-21T12:00:00+00:00"},
        "job": job,
        "started_at": ago(minutes=minutes_ago, seconds=seconds),
        "finished_at": ago(minutes=minutes_ago),
        "seconds": seconds,
        "summary": SAMPLES["summaries"].get(job, {}),
    }
    return {**SAMPLES["run"], **found, **changes}


def backlog(before: int, after: int) -> Json:
    """What waited before a run and after it."""
    sizes = {"bytes_before": before * 3 * MIB, "bytes_after": after * 3 * MIB}
    return {"generations_before": before, "generations_after": after, **sizes}


def history(count: int = 24, every_minutes: float = 5, first: float = 2) -> list[Json]:
    """Merges at a steady pace beside busy writers, each with its catch-up; newest first."""
    found: list[Json] = []
    for n in range(count):
        before, after, minutes = 5 + (n * 7) % 11, 0 if n % 9 else 3, first + n * every_minutes
        rows, seconds = 380 * (before - after), 5.5 + (n * 5) % 7 * 0.9 + before * 0.3
        idle = backlog(after, after + 1)
        found.append(run("index-catchup", minutes - 0.5, seconds=2.5 + n % 3, backlog=idle))
        summary = {
            "generations": before - after,
            "commits": 1,
            "rows_inserted": rows // 2,
            "rows_updated": rows // 3,
            "rows_deleted": rows // 30,
            "bytes_read": (before - after) * 3 * MIB,
        }
        more = {"seconds": seconds, "summary": summary, "backlog": backlog(before, after)}
        found.append(run("merge", minutes, **more))
    return found


def lake(count: int = 200) -> list[tuple[Json, list[Json]]]:
    """Status and runs of many tables: most are well, and every kind of trouble is among them."""
    return [_lake_table(n) for n in range(count)]


def _lake_table(n: int) -> tuple[Json, list[Json]]:
    group = ("sales.", "raw.", "web-", "iot_", "")[n % 5]
    name = f"{group}{('orders', 'clicks', 'refunds', 'users')[n % 4]}{n}"
    runs = history(3, first=1 + n % 4)
    if n % 50 == 3:
        return {"table": name, "outcome": "failed", "error": "no such bucket: lake"}, []
    if n % 70 == 17:
        return unreachable(name), []
    shards = [shard(k, pending=(n // 6 + k) % 9 if n % 6 == 0 else n % 3) for k in range(3)]
    behind = {"lag_generations": n % 5, "unindexed_rows": 37 * n}
    changes: Json = {"uri": f"s3://lake/{group.strip('._-') or 'misc'}/{name}"}
    if n % 40 == 7:
        waiting = ago(minutes=40 + n)
        shards = [shard(k, pending=8, oldest_pending_flushed_at=waiting) for k in range(3)]
    if n % 45 == 9:
        runs.insert(0, run("merge", 0.5, outcome="failed", exit_code=6, error="timed out"))
    if n % 60 == 11:
        shards[1].update(abandoned=True, unflushed_wal_entries=12, idle_seconds=90_000)
        shards[1].update(unflushed_seconds=90_300)
    if n % 25 == 13:
        changes["lease"] = lease()
    if n % 4 == 0:
        changes["indexes"] = [{"name": "id_idx", "caught_up": {}, **behind}]
        changes["index_lag_generations"] = n % 5
    return status(name, shards, **changes), runs


def ago(**parts: float) -> str:
    """The ISO text of a moment before NOW."""
    return (NOW - timedelta(**parts)).isoformat()
