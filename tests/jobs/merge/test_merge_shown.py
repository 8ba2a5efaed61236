"""What people see of a merge of many shards: those that matter, and how many there are."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from memwal.jobs.merge.report import MergeTableReport, ShardReport, show_table


def show(outcomes: list[str]) -> str:
    shards = [ShardReport(shard_id=f"shard-{n}", outcome=o) for n, o in enumerate(outcomes)]
    report = MergeTableReport(table="t", outcome="done", shards=tuple(shards))
    console = Console(file=StringIO(), width=200)
    for part in show_table(report):
        console.print(part)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_few_shards_are_all_listed() -> None:
    shown = show(["nothing_to_do"] * 49 + ["done"])
    assert shown.count("shard-") == 50
    assert "shown" not in shown


def test_of_many_those_with_work_are_listed_and_trouble_comes_first() -> None:
    shown = show(["nothing_to_do"] * 9_900 + ["done"] * 99 + ["failed"])
    lines = [line.split()[0] for line in shown.splitlines() if line.startswith("shard-")]
    assert lines[0] == "shard-9999"
    assert len(lines) == 50
    assert "10,000 shards, 100 with work, 50 shown; --json lists all" in shown
    assert "shard-1 " not in shown


def test_of_many_without_work_only_the_number_is_told() -> None:
    shown = show(["nothing_to_do"] * 51)
    assert shown.strip() == "51 shards, 0 with work, 0 shown; --json lists all"
