"""Many drills, in processes of their own: what aborts one of them is a finding too."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FINDINGS = frozenset(
    {
        "silent",
        "merged over",
        "crashed",
        "others only",
        "died",
        "hung",
        "crashed in repair",
        "not mended, said so neither",
        "silent after repair",
        "worse after repair",
        "verify disagrees with repair",
    }
)
"""Verdicts that break a promise. Others than memwal read wrongly in `others only`."""

# An error of Lance's with a zero byte in its text, which Arrow's interface for C can't hand on
# (pylance 14.0.2): the process aborts, before it has returned a row.
_ABORTED = "Error string has a null byte in it"
_DRILL_SECONDS_MAX = 60
_ROOT = Path(__file__).parents[2]


@dataclass(kw_only=True)
class Worker:
    """A process that does one drill after the other."""

    tables: Path
    work: Path
    repairs: bool
    process: Any = None
    errors: Any

    def run(self, seed: int) -> dict[str, Any]:
        """A drill's outcome as JSON has it; its verdict is `died` or `hung` if it has no other."""
        if self.process is None:
            code = "import sys, tests.drills.run as run; run.main(*sys.argv[1:])"
            words = [sys.executable, "-c", code, self.tables, self.work, int(self.repairs)]
            self.process = subprocess.Popen(
                list(map(str, words)), cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self.errors, text=True,
            )  # fmt: skip
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], _DRILL_SECONDS_MAX)
        line = self.process.stdout.readline() if ready else ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self.stop()
        self.errors.seek(0)
        said = self.errors.read()
        self.errors.seek(0)
        self.errors.truncate()
        verdict = ("aborted" if _ABORTED in said else "died") if ready else "hung"
        return {"seed": seed, "verdict": verdict, "said": said[-2000:]}

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def prepare_tables(folder: Path) -> Path:
    """Make the tables that drills copy, in a process that dies with rows in the WAL.

    A folder that has them keeps them: Lance's names differ each time, and so may what a seed hits.
    """
    tables = folder / "tables"
    if tables.exists():
        return tables
    tables.mkdir(parents=True)
    code = "import sys, pathlib, tests.drills.tables as t; t.prepare(pathlib.Path(sys.argv[1]))"
    words = [sys.executable, "-c", code, str(tables)]
    subprocess.run(words, cwd=_ROOT, check=True, capture_output=True)
    return tables


def run_many(
    seeds: Iterable[int], folder: Path, *, repairs: bool = False
) -> Iterator[dict[str, Any]]:
    """Outcomes of drills, one after the other."""
    tables, work = prepare_tables(folder), folder / "work"
    with tempfile.TemporaryFile("w+") as errors:
        worker = Worker(tables=tables, work=work, repairs=repairs, errors=errors)
        try:
            for seed in seeds:
                yield worker.run(seed)
        finally:
            worker.stop()


def main(tables: str, work: str, repairs: str) -> None:
    """A worker: seeds on stdin, outcomes on stdout."""
    from tests.drills.drill import run_drill

    out = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        place = Path(work)
        place.mkdir(parents=True, exist_ok=True)
        outcome = run_drill(Path(tables), int(line), place, repairs=bool(int(repairs)))
        shutil.rmtree(place)
        print(json.dumps({**asdict(outcome), "verdict": outcome.verdict}), file=out, flush=True)


def show(outcome: dict[str, Any]) -> str:
    """A finding as people read it."""
    lines = [f"## seed {outcome['seed']}: {outcome['verdict']}", outcome.get("said", "")]
    for damage in outcome.get("damages", ()):
        other = f", from {damage['other']}" if damage["other"] else ""
        lines.append(f"   {damage['kind']} {damage['path']}{other} {damage['detail']}")
    for when in ("before", "after"):
        looks = outcome.get(when) or {"verify": None, "reads": ()}
        for look in (looks["verify"], *looks["reads"]):
            if look and look["result"] != "right":
                lines.append(f"   {when}: {look['name']} {look['result']}: {look['said'][:300]}")
        for name in ("merged", "repair") if when == "before" else ():
            if done := outcome.get(name):
                lines.append(f"   {name} {done['result']}: {done['said'][:600]}")
    return "\n".join(filter(None, lines))
