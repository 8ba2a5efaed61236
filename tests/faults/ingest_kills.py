"""Ingests of operands killed with -9 in every phase, on this process's engine and on Spark.

    python -m tests.faults.ingest_kills --kills 100 --spark 10 --seed 1

Columns are summed, appended to an ordered list and deleted: a row that is lost, written twice or
out of its key's order shows. Bad rows are set aside, each once. Between kills somebody merges now
and then. When an ingest comes to its end, every row is compared with the model, and more files
land.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.support.ingest_counters import CHANGES, FILES, Counters, make_counters
from tests.support.ingest_killed import PHASES, ingest_and_die_in
from tests.support.nursery import ROOT, start

BAD_PER_FILE = 2
_NTH_MAX = {"plan": 2, "claim": 3, "session": 3, "rejects": 2, "close": 3}
_LEFT = "_maintenance/ingest/*/*"
SPARK_PHASES = {
    "staging": f"{_LEFT}/staged/**/*.arrow",
    "plan": f"{_LEFT}/plan.json",
    "session": f"{_LEFT}/sessions/*/*",
    "progress": f"{_LEFT}/progress/*/*",
}
"""What appears when a phase begins, which is all that is seen of it from outside."""
_END_SECONDS_MAX = 180.0


class IngestKills:
    """One table whose ingests are killed again and again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.counters: Counters = make_counters(folder, seed, bad_per_file=BAD_PER_FILE)
        self.chance = random.Random(seed)
        self.landed, self.bad = CHANGES, BAD_PER_FILE * FILES
        self.kills: Counter[str] = Counter()
        self.finished = 0

    def run(self, kills: int, spark_kills: int = 0) -> None:
        """Kill so often, and check what is there whenever an ingest has come to its end."""
        while sum(self.kills.values()) < kills:
            phase = PHASES[sum(self.kills.values()) % len(PHASES)]
            self._take(phase, self._kill_here(phase))
        while sum(self.kills.values()) < kills + spark_kills:
            places = [*SPARK_PHASES]
            place = places[(sum(self.kills.values()) - kills) % len(places)]
            # Staging and its plan come at the beginning of an ingest only.
            if place in ("staging", "plan"):
                self._finish()
            self._take(f"spark {place}", self._kill_on_spark(place))
        self._finish()

    def _take(self, phase: str, code: int) -> None:
        if code == -signal.SIGKILL:
            self.kills[phase] += 1
            if self.chance.random() < 0.25:
                self.counters.flush_what_is_left()
                self.counters.merge()
            assert self.counters.rows_in_wal() <= self.landed, phase
        else:
            assert code == 0, phase
            self._finish()

    def _finish(self) -> None:
        """Let the ingest come to its end, compare every row, and let more files land."""
        self.counters.ingest()
        assert self.counters.rows_in_wal() == self.landed
        bad = self.counters.read_bad_rows()
        assert len(bad) == len({*bad}) == self.bad
        truth = self.counters.truth()
        assert self.counters.read() == truth
        self.counters.merge()
        assert self.counters.table.base_rows() == truth
        self.finished += 1
        self.counters.land()
        self.landed += CHANGES
        self.bad += BAD_PER_FILE * FILES

    def _kill_here(self, phase: str) -> int:
        chance = self.chance
        seconds = chance.uniform(0.0, 0.02) if phase == "flush" or chance.random() < 0.3 else 0.0
        nth = chance.randint(1, _NTH_MAX.get(phase, 8))
        progress_seconds = chance.choice([0.0, 0.02, 1e9])
        words = self.counters.words()
        process = start(ingest_and_die_in, phase, nth, seconds, progress_seconds, words)
        with process:
            out, err = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), out + err
        return int(process.returncode)

    def _kill_on_spark(self, place: str) -> int:
        folder, pattern = Path(self.counters.table.uri), SPARK_PHASES[place]
        before = {*folder.glob(pattern)}
        process = subprocess.Popen(
            [sys.executable, "-m", "memwal", "ingest", *self.counters.words(),
             "--engine", "spark", "--master", "local[2]"],
            cwd=ROOT, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + _END_SECONDS_MAX
        while process.poll() is None and {*folder.glob(pattern)} <= before:
            assert time.monotonic() < deadline, place
            time.sleep(0.01)
        time.sleep(self.chance.uniform(0.0, 0.3))
        # Python workers have a group of their own, and go on for a moment beside the next run.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def main() -> int:
    """Run it as often as is asked for. What is not as it should be is raised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--spark", type=int, default=0, help="kills on Spark, besides")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memwal-ingest-kills-") as folder:
        killing = IngestKills(Path(folder), given.seed)
        try:
            killing.run(given.kills, given.spark)
        finally:
            print(f"killed in {dict(killing.kills)}; {killing.finished} ingests of {CHANGES} rows "
                  "finished and compared")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
