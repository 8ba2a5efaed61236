#!/usr/bin/env python3
"""Builds what is released into dist/, and tries it where there is nothing else.

Wheels and sdists of both packages are built twice, from two copies of the last commit, and have to
be the same bytes. Then each is installed beside no checkout, on the oldest and the newest Python,
with the oldest and the newest versions that our bounds allow, and the quickstart is followed there.
What can't be had on this machine is named in the table at the end, and is no failure.

    python -m scripts.dist [--build-only]
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.dist_trials import Had, Trial, list_trials
from scripts.quickstart import ROOT

DIST = ROOT / "dist"
PROJECTS = (".", "airflow_plugins")


def main() -> int:
    """Build, and try what was built; 1 if builds differ or a trial failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build-only", action="store_true", help="install nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memwal-dist-") as name:
        work = Path(name)
        files = build_twice(work)
        if files is None:
            return 1
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for file in files:
            shutil.copyfile(file, DIST / file.name)
            say(f"  dist/{file.name}  {file.stat().st_size / 1000:,.0f} kB")
        return 0 if arguments.build_only else try_all(work)


def build_twice(work: Path) -> list[Path] | None:
    """The files of the first of two builds in different folders; None if the second differs."""
    seconds = git("log", "-1", "--format=%ct").strip()
    if git("status", "--porcelain", "--untracked-files=no"):
        say("note: the last commit is built; what is not committed is left out")
    for turn in ("first", "second"):
        say(f"Building both packages, {turn} time")
        source = work / turn / f"source-{turn}"
        source.mkdir(parents=True)
        archive = work / "source.tar"
        git("archive", "--output", str(archive), "HEAD")
        subprocess.run(["tar", "-xf", archive, "-C", source], check=True)
        for project in PROJECTS:
            build_project(source / project, work / turn / "built", seconds)
    first, second = (work / turn / "built" for turn in ("first", "second"))
    names = sorted({file.name for folder in (first, second) for file in folder.iterdir()})
    _, differing, missing = filecmp.cmpfiles(first, second, names, shallow=False)
    for file in (*differing, *missing):
        say(f"FAILED: two builds of {file} differ")
    return None if differing or missing else [first / file for file in names]


def build_project(project: Path, folder: Path, seconds: str) -> None:
    """Its sdist, and the wheel that is made of it, into `folder`; dated `seconds`."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, project)
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "SOURCE_DATE_EPOCH": seconds,
    }
    subprocess.run(command, check=True, capture_output=True, env=variables)


def try_all(work: Path) -> int:
    """Each trial in an environment of its own, which is removed after it; then the table."""
    trials = list_trials(DIST)
    rows = []
    for number, trial in enumerate(trials, 1):
        say(f"[{number}/{len(trials)}] {trial.name}, Python {trial.python}")
        had = trial.run(work / str(number))
        shutil.rmtree(work / str(number), ignore_errors=True)
        say(f"        {had.outcome} in {had.seconds:.0f} s")
        if had.said:
            say(had.said)
        rows.append((trial, had))
    print_table(rows)
    return int(any(had.outcome == "FAILED" for _, had in rows))


def print_table(rows: list[tuple[Trial, Had]]) -> None:
    """What was tried, with which versions, and what came of it."""
    width = max(len(trial.name) for trial, _ in rows)
    print(f"\n{'installed':<{width}}  {'Python':<8}{'result':<11}{'s':>4}  versions")
    for trial, had in rows:
        python = had.python or trial.python
        line = f"{trial.name:<{width}}  {python:<8}{had.outcome:<11}{had.seconds:>4.0f}"
        print(f"{line}  {had.versions}")


def git(*words: str) -> str:
    """What it prints."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def say(text: str) -> None:
    """At once, also into a pipe."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
