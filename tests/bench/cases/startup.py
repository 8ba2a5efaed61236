"""How long starting takes: the CLI (B10) and a Spark job (B11)."""

from __future__ import annotations

import sys

from harness import Bench, against, program, run_process
from tables import make_base, new_shards, pending

TITLE = "Start-up"


def run(bench: Bench) -> None:
    """B10."""
    folder = bench.new_folder("startup")
    table = folder / "table"
    make_base(table, 1_000)
    pending(table, new_shards(1), 2, 100, 1_000)
    seconds = bench.side_by_side(
        {
            "status": lambda: run_process([program("memwal"), "status", table], folder).seconds,
            "lance": lambda: run_process([sys.executable, "-c", "import lance"], folder).seconds,
        },
        rounds=5 if bench.quick else 15,
    )
    bench.figure(
        "B10",
        "memwal status, against importing lance",
        seconds["status"] / seconds["lance"],
        "x",
        at_most=1.5,
        measured=against(seconds, "status", "lance"),
    )
