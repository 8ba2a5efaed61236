"""`memwal demo`: a table is made, looked at, merged, and looked at again."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from jobs._launch import Progress, RunOptions
from jobs._merge import MergeOptions, run_merge
from jobs._status import run_status
from memwal import demo
from memwal.config import ResolvedTable, Settings
from memwal.console import show_report
from memwal.report import FAILED, JobReport


def run_demo(
    folder: Path | None, console: Console, progress: Progress, *, engine: str, master: str | None
) -> JobReport:
    """Make a table in `folder` (None: a new temporary one) and run the jobs on it."""
    place = folder or Path(tempfile.mkdtemp(prefix="memwal-demo-")) / "table"
    resolved = ResolvedTable(
        name=str(place), uri=str(place), settings=Settings(), storage_options={}
    )
    _heading(console, f"1. A table with a live MemWAL, written by pylance: {place}")
    table = demo.make_table(place)
    console.print(
        f"{demo.BASE_ROWS:,} base rows. {demo.SHARDS} writers put, updated and deleted rows in "
        f"{demo.GENERATIONS} sessions each;\neach session left a flushed generation under "
        "_mem_wal/. None of that is in the base table yet:"
    )
    before = demo.count_differences(table)
    console.print(f"{before:,} keys of the base table differ from what the writers wrote.\n")
    show_report(run_status(RunOptions(tables=[resolved])), console)
    _heading(console, "2. memwal merge: generations are folded into the base, oldest first")
    console.print(
        "The newest row of a key wins and tombstones delete; the watermark of each shard moves in\n"
        "the same commit as its rows, so a crash can't lose or double any.\n"
    )
    report = run_merge(MergeOptions(tables=[resolved], engine=engine, master=master), progress)
    show_report(report, console)
    _heading(console, "3. Afterwards")
    show_report(run_status(RunOptions(tables=[resolved])), console)
    after = demo.count_differences(table)
    style = "green" if after == 0 else "red"
    console.print(Text(f"\n{before:,} keys differed before, {after:,} differ now.", style=style))
    console.print(
        f"Look around: memwal status {place} | memwal inspect shard {place} | "
        f"memwal inspect index {place}"
    )
    if after:
        return report.model_copy(
            update={"outcome": FAILED, "exit_code": 1, "error": f"{after} keys differ"}
        )
    return report


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n== {text}", style="bold cyan"))
