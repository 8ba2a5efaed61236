"""Chooses and runs the tests that a change can reach, within a few minutes: `make test-changed`.

    .venv/bin/python scripts/changed_tests.py [--base REF] [--minutes 3] [--list] [PYTEST'S OPTIONS]

Nearly every module is reached by nearly every test, through the command line. So what mirrors a
changed file runs first (tests/jobs/merge for memwal/jobs/merge), then what imports it, directly
before through others, as long as tests/durations.json says that there is time. What is nightly is
left out; `-m ""` among pytest's options runs it too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import Path, PurePosixPath

import grimp

ROOT = Path(__file__).resolve().parents[1]
ROOTS = {"memwal": ".", "memwal_airflow": "airflow_plugins", "tests": ".", "bench": "."}
AIRFLOW = "tests/airflow/"
OF_PAGES = "tests/architecture/"
# The modules that load others by a name put together at run time.
LOADED_BY = {"memwal/cli/": "memwal.cli.commands", "show.py": "memwal.cli.console"}
# How near a test is: it has the changed file's name or names it, lies in the folder that mirrors
# the file's, or imports it. The second number counts imports.
NAMED, BESIDE, REACHES = range(3)
UNREACHED = 1000
Nearness = tuple[int, int]
UNKNOWN_SECONDS = 10.0
START_SECONDS = 8.0
NONE_SELECTED = 5


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Test files in the order of their nearness, and what running them should take."""

    run: tuple[str, ...]
    left_out: tuple[str, ...]
    seconds: float


# ---- what changed


def git(*words: str) -> list[str]:
    """What git lists. Raises CalledProcessError."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.replace("\0", "\n").splitlines() if name]


def find_base(asked: str | None) -> str:
    """Where the change begins: at HEAD when there is something that is not committed, else where
    it left main, else at the commit before.
    """
    if asked:
        return git("merge-base", "HEAD", asked)[0]
    if git("status", "--porcelain"):
        return "HEAD"
    for main in ("origin/main", "main"):
        try:
            (forked,) = git("merge-base", "HEAD", main)
        except subprocess.CalledProcessError:
            continue
        if [forked] != git("rev-parse", "HEAD"):
            return forked
    return "HEAD~1"


def find_changed(base: str) -> list[str]:
    """Files that are not as they are there, with those that git does not know yet."""
    untracked = git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted({*git("diff", "--name-only", "--no-renames", "-z", base), *untracked})


# ---- what it reaches


def module_of(file: str) -> str | None:
    """The module in a file of a package of ours."""
    path = PurePosixPath(file.removeprefix("airflow_plugins/"))
    if path.suffix != ".py" or path.parts[0] not in ROOTS:
        return None
    parts = path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts
    return ".".join(parts)


def file_of(module: str) -> str:
    """A test's file."""
    return module.replace(".", "/") + ".py"


def is_test(file: str) -> bool:
    """Whether pytest would collect it."""
    path = PurePosixPath(file)
    return path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"


def build_graph() -> grimp.ImportGraph:
    """Who imports whom, in our packages and their tests."""
    sys.path[:0] = [str(ROOT / folder) for folder in {*ROOTS.values()}]
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    for module in graph.modules:
        if graph.find_modules_that_directly_import(module):
            continue
        for part, loader in LOADED_BY.items():
            if part in file_of(module) and module != loader:
                graph.add_import(importer=loader, imported=module)
    return graph


def find_distances(graph: grimp.ImportGraph, changed: Iterable[str]) -> dict[str, int]:
    """How many imports each module is away from the nearest changed one that it reaches."""
    nearest = [module for module in changed if module in graph.modules]
    distances = dict.fromkeys(nearest, 0)
    while nearest:
        further = []
        for module in nearest:
            for importer in graph.find_modules_that_directly_import(module):
                if importer not in distances:
                    distances[importer] = distances[module] + 1
                    further.append(importer)
        nearest = further
    return distances


def mirrored(file: str, tests: Iterable[str]) -> list[str]:
    """The test files beside a changed file: in the folder that mirrors its own, or the next one up
    that does. A command's are its job's as well.
    """
    tests = list(tests)
    path = PurePosixPath(file)
    folder = path.parent
    if path.parts[0] == "airflow_plugins":
        return [test for test in tests if test.startswith((AIRFLOW, "tests/provider/"))]
    if path.parts[0] == "tests":
        return [t for t in tests if path.name == "conftest.py" and t.startswith(f"{folder}/")]
    if path.parts[0] != "memwal":
        return []
    found = [test for test in tests if test.startswith(f"tests/jobs/{path.stem}/")]
    while folder.parts[1:]:
        below = str(PurePosixPath("tests", *folder.parts[1:])) + "/"
        beside = [test for test in tests if test.startswith(below)]
        if beside:
            return [*found, *beside] if folder.parts[1] == "cli" else beside
        folder = folder.parent
    return []


def naming(file: str, texts: Mapping[str, str]) -> list[str]:
    """The test files that name a file which is no module of theirs: a page, a script, a DAG."""
    module = file.removesuffix(".py").replace("/", ".")
    return [test for test, text in texts.items() if file in text or f"{module} " in text]


def order(
    changed: Sequence[str],
    graph: grimp.ImportGraph,
    texts: Mapping[str, str],
    durations: Mapping[str, float],
) -> list[tuple[str, Nearness]]:
    """Test files that the change can reach, the nearest first, and of equally near ones the
    shortest.

    `texts` has the text of each test file that is there.
    """
    modules = {file: module_of(file) for file in changed}
    reached = find_distances(graph, (module for module in modules.values() if module))
    imports = {file_of(module): many for module, many in reached.items()}
    found = {test: (REACHES, imports[test]) for test in texts if test in imports}
    for file in changed:
        near: dict[str, int] = {}
        if modules[file] is None:
            near |= {test: BESIDE for test in texts if test.startswith(OF_PAGES)}
            near |= dict.fromkeys(naming(file, texts), NAMED)
        for test in mirrored(file, texts):
            near[test] = NAMED if _names_of(file) & _names_of(test) else BESIDE
        if file in texts:
            near[file] = NAMED
        for test, how in near.items():
            known = found.get(test, (REACHES, UNREACHED))
            found[test] = (min(known[0], how), known[1])
    return sorted(found.items(), key=lambda each: (each[1], _takes(each[0], durations), each[0]))


def _takes(test: str, durations: Mapping[str, float]) -> float:
    return durations.get(test, UNKNOWN_SECONDS)


def _names_of(file: str) -> set[str]:
    """The words by which a module and its tests are known: `plan` and `shard` of plan/shard.py."""
    path = PurePosixPath(file)
    if is_test(file):
        return set(path.stem.split("_")[1:]) | {path.stem.removeprefix("test_")}
    return {path.stem, path.parent.name}


def finish_seconds(seconds: Iterable[float], processes: int) -> float:
    """When the last of some processes ends that share out files, the longest first."""
    busy = [0.0] * processes
    heapify(busy)
    for each in sorted(seconds, reverse=True):
        heapreplace(busy, busy[0] + each)
    return max(busy)


def choose(
    ordered: Sequence[str], durations: Mapping[str, float], *, seconds_max: float, processes: int
) -> Selection:
    """As many as there is time for, the first ones first; a file too long for what is left is left
    out, and the shorter ones after it are not. Airflow's run after the others, in one process.
    """
    run: list[str] = []
    left_out: list[str] = []
    taken = 0.0
    for file in ordered:
        together = [*run, file]
        takes = {f: _takes(f, durations) for f in together}
        airflow = sum(takes[f] for f in together if f.startswith(AIRFLOW))
        others = [takes[f] for f in together if not f.startswith(AIRFLOW)]
        ends = START_SECONDS + airflow + finish_seconds(others, processes)
        if ends > seconds_max:
            left_out.append(file)
            continue
        run.append(file)
        taken = ends
    return Selection(run=tuple(run), left_out=tuple(left_out), seconds=taken)


# ---- the command


def main() -> int:
    """pytest's exit code."""
    arguments, for_pytest = _parse()
    base = find_base(arguments.base)
    changed = find_changed(base)
    tests = [f for f in git("ls-files", "-co", "--exclude-standard", "tests") if is_test(f)]
    texts = {file: (ROOT / file).read_text() for file in tests if (ROOT / file).exists()}
    kept = json.loads((ROOT / "tests" / "durations.json").read_text())
    durations = {file: levels.get("test", 0.0) for file, levels in kept.items()}
    ordered = order(changed, build_graph(), texts, durations)
    selection = choose(
        [test for test, _ in ordered],
        durations,
        seconds_max=60 * arguments.minutes,
        processes=arguments.processes,
    )
    _tell(base, changed, dict(ordered), durations, selection)
    if arguments.list or not selection.run:
        return 0
    return _run(selection.run, arguments.processes, for_pytest)


def _parse() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description="Run the tests that a change can reach.")
    parser.add_argument("--base", help="compare with where the change left this, e.g. origin/main")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long it may take")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="run nothing")
    return parser.parse_known_args()


def _tell(
    base: str,
    changed: Sequence[str],
    nearness: Mapping[str, Nearness],
    durations: Mapping[str, float],
    selection: Selection,
) -> None:
    print(f"{len(changed)} files changed since {base[:12]}")
    for file in selection.run:
        takes = f"{durations[file]:.1f}s" if file in durations else "?"
        print(f"  {takes:>7}  {file}  ({_say(*nearness[file])})")
    print(f"{len(selection.run)} test files, about {selection.seconds:.0f} seconds")
    if selection.left_out:
        shown = ", ".join(selection.left_out[:8])
        more = len(selection.left_out) - 8
        print(
            f"left out for time: {len(selection.left_out)}: {shown}"
            + (f" and {more} more" if more > 0 else "")
            + "; MINUTES=N gives them more, `make test` runs them all"
        )
    sys.stdout.flush()


def _say(how: int, imports: int) -> str:
    if how == REACHES:
        return f"{imports} imports away"
    return "has its name" if how == NAMED else "lies beside it"


def _run(files: Sequence[str], processes: int, for_pytest: Sequence[str]) -> int:
    """Both suites, one after the other where the change is in both."""
    airflow = [file for file in files if file.startswith(AIRFLOW)]
    others = [file for file in files if not file.startswith(AIRFLOW)]
    plain = ("-q", "-m", "not nightly", *for_pytest)
    many = ("-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder")
    airflow_pytest = str(Path(os.environ.get("VENV_AIRFLOW", ".venv-airflow")) / "bin" / "pytest")
    code = 0
    if others:
        words = [sys.executable, "-m", "pytest", *many, *plain, *others]
        code = subprocess.run(words, cwd=ROOT, check=False).returncode
    if airflow:
        words = [airflow_pytest, *plain, *airflow]
        code = subprocess.run(words, cwd=ROOT, check=False).returncode or code
    return 0 if code == NONE_SELECTED else code


if __name__ == "__main__":
    sys.exit(main())
