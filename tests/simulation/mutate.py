"""`make mutation`: applies each mutation to a copy of the sources and runs the simulation on it."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutations import MUTATIONS, Mutation
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
_COPIED = ("memwal", "jobs", "tests", "pyproject.toml")


def run(mutation: Mutation, seeds: int) -> tuple[bool, str, float]:
    """Whether it was noticed, by what, and how long that took."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="memwal-mutation-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__")
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=ignored)
            else:
                shutil.copy(source, copy / name)
        apply(mutation, copy)
        words = [sys.executable, "tests/simulation/simulate.py", "--until-failure"]
        words += ["--seeds", str(seeds)]
        if mutation.tests:
            words = [sys.executable, "-m", "pytest", "-q", "-x", *mutation.tests.split()]
        environment = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'tests'}"}
        done = subprocess.run(
            words, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    return done.returncode == 1, _told(done), time.perf_counter() - started


def _told(done: subprocess.CompletedProcess[str]) -> str:
    """What noticed it: the seed with the violation, or the test."""
    lines = [line.strip() for line in done.stdout.splitlines()]
    first = next((t for t in lines if t.startswith(("seed ", "FAILED"))), "")
    seed = first.partition(":")[0] + ": " if first.startswith("seed ") else ""
    told = next((t.partition("Violation: ")[2] for t in lines if "Violation: " in t), "")
    return seed + (told or first.removeprefix(seed)) or done.stderr.strip()[-200:]


def apply(mutation: Mutation, root: Path) -> None:
    """Change the one place. Raises ValueError when it is not there exactly once."""
    file = root / mutation.file
    text = file.read_text()
    if text.count(mutation.before) != 1:
        raise ValueError(
            f"{mutation.name}: {text.count(mutation.before)} places in {mutation.file}"
        )
    file.write_text(text.replace(mutation.before, mutation.after))


def main() -> int:
    """Exit code 1 when a mutation survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--only", help="names that contain this")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if not arguments.only or arguments.only in m.name]
    table = Table("mutation", "", "seconds", "noticed by", box=None)
    survived = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda m: run(m, arguments.seeds), chosen)
        for mutation, (caught, by, seconds) in zip(chosen, found, strict=True):
            survived += not caught
            table.add_row(
                mutation.name, "caught" if caught else "SURVIVED", f"{seconds:.0f}", by[:90]
            )
    Console(width=200).print(table)
    print(f"{len(chosen) - survived} of {len(chosen)} mutations were noticed")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
