"""`make bench`: runs the cases one after the other, each in a process of its own.

Writes a table to the terminal, `results.json` and plots. A case that fails is told and does not
stop the others. Exit code: 0 when every figure meets its target, 3 when one does not (the table
says which), 1 when a case could not be run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness import ROOT, Bench, Figure, Target
from bench.plots import draw

CASES = (
    "merge",
    "scaling",
    "sharing",
    "first_merge",
    "base_size",
    "idle",
    "freshness",
    "looks",
    "many_shards",
    "memory",
    "wide_rows",
    "columns",
    "garbage",
    "upkeep",
    "backup",
    "changes",
    "sweeps",
    "index_catchup",
    "read",
    "search",
    "throughput",
    "policies",
    "ingest",
    "startup",
)
NOT_MET = 3
_SENTENCES = (
    (
        "A merge takes {} of what reading the generations and pylance's own `merge_insert` take, "
        "with rows that were folded before the clock started; a loop of `merge_insert` takes {} of "
        "memwal's time.",
        ("B1", "merge, against reading and pylance's merge_insert of rows folded beforehand"),
        ("B1", "merge, against a loop of merge_insert (key with a BTREE)"),
    ),
    (
        "Reading a table with 200 generations that are not merged yet takes {} of what it takes "
        "after the merge; with pylance's LsmScanner {}.",
        ("B9", "all columns with memwal: before against after the merge"),
        ("B9", "all columns with LsmScanner: before against after the merge"),
    ),
    (
        "Upkeep of a table without a MemWAL takes {} of what pylance's own calls take at 1,000 "
        "fragments, and {} at 10,000; at 100 {}, as a run of any size takes a tenth of a second.",
        ("B24", "compact, index and expire 1,000 fragments, against by hand"),
        ("B24", "compact, index and expire 10,000 fragments, against by hand"),
        ("B24", "compact, index and expire 100 fragments, against by hand"),
    ),
    (
        "A watch over 1,000 local tables, of which 50 are written to, has each flush merged within "
        "{}; on S3 with 20 ms a request, where two cores have the writers and the server as well, "
        "100 tables of which 10 are written take up to {}.",
        ("B18", "1000 tables, 50 written: flush to merged, the worst"),
        ("B18", "100 tables on S3, 10 written: flush to merged, the worst"),
    ),
    (
        "Not fast: a second core makes merges of new keys {} as fast, because of two commits that "
        "insert Lance lets only one land.",
        ("B2", "8 shards on local[2] and two cores, against local[1] and one (half new keys)"),
    ),
)


def main() -> int:
    """Run what is asked for."""
    arguments = _arguments()
    if arguments.in_process:
        return _run_one(arguments.in_process, arguments)
    results, failed = _run_all(arguments.cases or CASES, arguments)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    if arguments.cases and arguments.output.exists():
        results = _merged(json.loads(arguments.output.read_text()), results)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    arguments.output.with_suffix(".md").write_text(_markdown(results))
    draw(results, arguments.output.parent / "plots")
    figures = [_figure(told) for case in results["cases"] for told in case["figures"]]
    Console().print(_table(figures))
    print(f"written: {arguments.output}, {arguments.output.parent / 'plots'}/")
    if failed:
        print(f"could not be run: {', '.join(failed)}", file=sys.stderr)
        return 1
    return NOT_MET if any(figure.met is False for figure in figures) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="smaller tables, fewer rounds")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison (default 3, quick 1)")
    parser.add_argument(
        "--output", type=Path, help="default: build/bench/results.json (quick: build/bench-quick)"
    )
    parser.add_argument("--in-process", metavar="CASE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    name = "bench-quick" if arguments.quick else "bench"
    arguments.output = arguments.output or ROOT / "build" / name / "results.json"
    return arguments


def _run_one(name: str, arguments: argparse.Namespace) -> int:
    """One case, in this process; its result goes to the output file."""
    case = importlib.import_module(f"bench.cases.{name}")
    with tempfile.TemporaryDirectory(prefix=f"memwal-bench-{name}-") as folder:
        bench = Bench(folder=Path(folder), quick=arguments.quick, rounds=arguments.rounds)
        started = time.perf_counter()
        case.run(bench)
    told = {
        "name": name,
        "title": case.TITLE,
        "seconds": round(time.perf_counter() - started, 1),
        "figures": [asdict(figure) | {"met": figure.met} for figure in bench.figures],
        "series": [asdict(series) for series in bench.series],
    }
    arguments.output.write_text(json.dumps(told))
    return 0


def _run_all(
    names: Sequence[str], arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[str]]:
    cases, failed = [], []
    # This checkout's modules before anything else.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    for name in names:
        print(name, file=sys.stderr, flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            words = ["--in-process", name, "--output", out.name, "--rounds", str(arguments.rounds)]
            words += ["--quick"] if arguments.quick else []
            argv = [sys.executable, "-m", "bench.run", *words]
            if subprocess.run(argv, env=environment, check=False).returncode:
                failed.append(name)
                continue
            cases.append(json.loads(Path(out.name).read_text()))
    return {"machine": _machine(arguments), "cases": cases}, failed


def _machine(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "pylance": version("pylance"),
        "pyspark": version("pyspark"),
        "quick": arguments.quick,
        "rounds": arguments.rounds,
        "day": time.strftime("%Y-%m-%d"),
    }


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The old results with the cases that were run again put in."""
    found = {case["name"]: case for case in old["cases"] + new["cases"]}
    return {**new, "cases": [found[name] for name in CASES if name in found]}


def _figure(told: dict[str, Any]) -> Figure:
    fields = {name: value for name, value in told.items() if name not in ("met", "target")}
    return Figure(**fields, target=Target(**told["target"]))


def _markdown(results: dict[str, Any]) -> str:
    """The results as a Markdown page."""
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    lines = [f"# What `make bench` measured ({machine})", "", *_summary(results), ""]
    for case in results["cases"]:
        lines += [f"## {case['title']}", "", "| | what | value | target | met | measured | costs |"]
        lines.append("|---|---|---|---|---|---|---|")
        for told in case["figures"]:
            cells = _cells(_figure(told), no="**no**")
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def _summary(results: dict[str, Any]) -> list[str]:
    """A picture, and a sentence for each subject of which there are figures."""
    figures = [_figure(told) for case in results["cases"] for told in case["figures"]]
    lines = ["![Each figure as a share of what its target allows](plots/targets.png)", ""]
    for text, *names in _SENTENCES:
        found = [f for case, what in names for f in figures if (f.case, f.what) == (case, what)]
        if len(found) == len(names):
            lines.append("- " + text.format(*(f"{f.value:,.3g} {f.unit}" for f in found)))
    missed = sum(figure.met is False for figure in figures)
    aimed = sum(figure.met is not None for figure in figures)
    return [*lines, f"- {missed} of {aimed} targets are missed: [why](../README.md)."]


def _cells(figure: Figure, no: str) -> tuple[str, ...]:
    return (
        figure.case,
        figure.what,
        f"{figure.value:,.3g} {figure.unit}",
        figure.target.text(),
        {True: "yes", False: no, None: ""}[figure.met],
        figure.measured,
        ", ".join(f"{name} {value:,.4g}" for name, value in figure.costs.items()),
    )


def _table(figures: Sequence[Figure]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "what", "value", "target", "met", "measured"):
        table.add_column(name, justify="right" if name in ("value", "target") else "left")
    for figure in figures:
        *cells, measured, costs = _cells(figure, no="NO")
        table.add_row(*cells, "; ".join(filter(None, (measured, costs))))
    return table


if __name__ == "__main__":
    sys.exit(main())
