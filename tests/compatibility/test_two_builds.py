"""Two builds of memwal on one table at a time, as in a fleet that is upgraded host by host.

In each round pylance's writers put rows while a job of either build is at work, and all of them are
killed, or let go, at random. After each round the merging read, WAL included, has to be what the
writers' logs allow. At the end both builds bring the table to rest, each row is there once, and
both find it well.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memwal.read import ReadRequest, open_table
from tests.compatibility.builds import CURRENT, Build, previous
from tests.faults import live
from tests.faults.live import Model
from tests.support import builders
from tests.support.builders import Put, Rows
from tests.support.nursery import Started, start
from tests.support.sampling import seeds

pytestmark = [pytest.mark.nightly, pytest.mark.races]

ROUNDS = 12
WRITTEN, INGESTED = 80, 240
ROWS_A_FILE = 40
PAUSE_SECONDS = 0.02

SHORT = ["--retention", "0s", "--grace", "0s", "--allow-short-retention"]
COLLECT = ["--execute", "--wal", *SHORT]
JOBS: dict[str, list[str]] = {
    "watch": ["--for", "3s", "--freshness", "1s", "--every", "100ms", "--retention", "1d"],
    "merge": [],
    "index-catchup": [],
    "snapshot": [],
    "compaction": [],
    "garbage": COLLECT,
    "maintain": COLLECT,
}


class Fleet:
    """One table, the hosts that work on it, and what they were seen to do."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.builds = (previous(), CURRENT)
        self.chance = random.Random(seed)
        self.folder = folder
        keys = WRITTEN + INGESTED
        self.table = builders.make_table(
            folder / "t", rows=range(0, WRITTEN, 2), shards=3, indexed=True
        )
        self.model = Model.of(self.table, keys, range(0, WRITTEN, 2))
        self.seeds = iter(range(seed * 10_000, seed * 10_000 + 10_000))
        self.seconds = dict.fromkeys((*JOBS, "ingest", "checkpoint"), 0.5)
        self.next_jobs: dict[Build, list[str]] = {build: [] for build in self.builds}
        self.files = list(range(INGESTED // ROWS_A_FILE))
        self.checkpoints: list[str] = []
        self.seen: Counter[str] = Counter()
        self.told: list[tuple[Build, str, str]] = []

    def round(self) -> None:
        """Both writers beside a job of each build."""
        writers = [self._write(place) for place in range(2)]
        self._wait_for(writers)
        started = [self._start(build) for build in self.builds]
        files = self.files[:1]  # which both may ingest at once
        for build, job, process, until in sorted(started, key=lambda one: one[3]):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            done = self._end(build, job, process)
            if done and job == "ingest" and self.files and files == self.files[:1]:
                self._acknowledge()
        for process, keys, seed, log in writers:
            if self.chance.random() < 0.5:
                process.kill()
                assert process.wait() == -signal.SIGKILL
            else:
                Path(f"{log}.stop").touch()
                assert process.wait() == 0, log
            live.replay_log(self.model, keys, seed, log)
        self.model.check(self.rows(with_wal=True), f"after {dict(self.seen)}")

    def rows(self, *, with_wal: bool) -> Rows:
        table = open_table(self.table.uri, self.table.options)
        return self.table.keyed(table.open_reader(ReadRequest(), with_wal=with_wal)[1].read_all())

    def _write(self, place: int) -> tuple[Started, Any, int, Path]:
        keys, seed = live.keys_of(place, 2, WRITTEN), next(self.seeds)
        log = self.folder / f"writer-{seed}"
        process = start(
            live.write_and_log,
            self.table.uri, {}, self.table.shards[place], [*keys], seed, log, PAUSE_SECONDS,
        )  # fmt: skip
        return process, keys, seed, log

    @staticmethod
    def _wait_for(writers: list[tuple[Started, Any, int, Path]]) -> None:
        for process, _, _, log in writers:
            while not log.exists() or log.read_text().count("acknowledged") < 6:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.005)

    def _start(self, build: Build) -> tuple[Build, str, Started, float]:
        waiting = self.next_jobs[build]
        if not waiting:
            waiting += [*JOBS, "ingest", "ingest", "checkpoint"]
            self.chance.shuffle(waiting)
        job = waiting.pop()
        process = build.start(*self._words(job), "--json")
        seconds = self.chance.uniform(0, 2 * self.seconds[job])
        return build, job, process, time.monotonic() + seconds

    def _words(self, job: str) -> list[str]:
        uri = self.table.uri
        if job == "ingest":
            return self._ingest(self.files[0]) if self.files else ["status", uri]
        if job == "checkpoint":
            name = f"moment-{len(self.checkpoints)}"
            self.checkpoints.append(name)
            return ["checkpoint", "create", uri, name]
        return [job, uri, *JOBS[job], "--engine", "local"]

    def _ingest(self, number: int) -> list[str]:
        """The command for one file, which either build begins, and either may go on with."""
        first = WRITTEN + number * ROWS_A_FILE
        op = Put(range(first, first + ROWS_A_FILE), 10**6 + first)
        file = self.folder / f"{number}.parquet"
        if not file.exists():
            rows = [self.table.row(key, op.n + place) for place, key in enumerate(op.keys)]
            pq.write_table(pa.Table.from_pylist(rows, schema=self.table.dataset.schema), file)
            self.model.begun(op)
        return [
            "ingest", self.table.uri, str(file), "--id", f"file-{number}",
            "--shard", self.table.shards[2], "--rows-per-chunk", "4",
        ]  # fmt: skip

    def _end(self, build: Build, job: str, process: Started) -> bool:
        """End it; whether it said that all was done."""
        process.kill()
        out, err = process.communicate()
        code = process.wait()
        self.seen[f"{build.name} {job}: {code}"] += 1
        if code == -signal.SIGKILL:
            self.seconds[job] = min(4.0, self.seconds[job] * 1.3)
            return False
        # Writers and the other build may be faster than it as often as it tries.
        assert code in (0, 4, 6), (build.name, job, out, err)
        self.told.append((build, job, out))
        return code == 0

    def _acknowledge(self) -> None:
        first = WRITTEN + self.files.pop(0) * ROWS_A_FILE
        self.model.acknowledged(Put(range(first, first + ROWS_A_FILE), 10**6 + first))

    # ---- the end

    def settle(self) -> None:
        """Both builds bring it to rest, in turns, until neither finds anything to do."""
        while self.files and (self.folder / f"{self.files[0]}.parquet").exists():
            self.builds[len(self.files) % 2].tell(*self._ingest(self.files[0]))
            self._acknowledge()
        live.flush(self.table)
        idle = 0
        for turn in range(16):
            build = self.builds[turn % 2]
            done = build.tell("maintain", self.table.uri, *COLLECT, "--engine", "local")
            idle = idle + 1 if done["outcome"] == "nothing_to_do" else 0
            if idle == 2:
                return
            time.sleep(0.1)
        raise AssertionError(f"there is still something to do: {json.dumps(done)}")

    def check(self) -> None:
        """Each acknowledged row is there once, for both builds, and both find the table well."""
        self.model.check(self.rows(with_wal=False), f"at the end of {dict(self.seen)}")
        self.check_alike("read", self.table.uri)
        for name in self.checkpoints_there():
            self.check_alike("read", self.table.uri, "--checkpoint", name)
            self.chance.choice(self.builds).tell("checkpoint", "drop", self.table.uri, name)
        for build in self.builds:
            (table,) = build.tell("verify", self.table.uri)["tables"]
            assert [check for check in table["checks"] if check["ok"] is False] == []

    def checkpoints_there(self) -> list[str]:
        """The names of those that were finished; both builds see the same ones."""
        seen = [
            {c["name"] for c in table["checkpoints"] if c.get("ready", True)}
            for build in self.builds
            for table in build.tell("checkpoint", "list", self.table.uri)["tables"]
        ]
        assert seen[0] == seen[1]
        return sorted(seen[0])

    def check_alike(self, *arguments: str) -> None:
        """Both builds read the same rows."""
        one, other = (
            sorted(json.dumps(row) for row in build.tell(*arguments)["tables"][0]["rows"])
            for build in self.builds
        )
        assert one == other, arguments

    def check_documents(self) -> None:
        """What either build printed is what the other's schemas say, apart from further fields."""
        before, now = self.builds
        schemas: dict[tuple[str, str], Any] = {}
        for build, job, out in self.told:
            reader = now if build is before else before
            for text in out.splitlines() if job == "watch" else [out]:
                document = json.loads(text)
                name = "watch-event" if job == "watch" else document["job"]
                if (reader.name, name) not in schemas:
                    schemas[reader.name, name] = _open(
                        json.loads(reader.run("schema", name).stdout)
                    )
                jsonschema.validate(document, schemas[reader.name, name])


def _open(schema: Any) -> Any:
    """The schema as readers take it: fields that they don't know are passed over."""
    if isinstance(schema, dict):
        return {k: _open(v) for k, v in schema.items() if (k, v) != ("additionalProperties", False)}
    return [_open(part) for part in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("seed", seeds(full=10, part=1))
def test_two_builds_work_on_one_table_with_kills(seed: int, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, seed)
    for _ in range(ROUNDS):
        fleet.round()
    fleet.settle()
    fleet.check()
    fleet.check_documents()
    print(dict(fleet.seen), f"{len(fleet.told)} documents")
