"""Every report brings its own view."""

from __future__ import annotations

import io
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest
from rich.console import Console

import memwal
from memwal.cli.console import show_report
from memwal.report import JobReport, TableReport

for found in pkgutil.walk_packages(memwal.__path__, "memwal."):
    if found.name.endswith(".report"):
        import_module(found.name)


def kinds(kind: type[TableReport] = TableReport) -> Iterator[type[TableReport]]:
    for below in kind.__subclasses__():
        yield below
        yield from kinds(below)


def test_there_are_reports() -> None:
    assert len(ALONE) >= 14


# A backfill shows its tables together.
ALONE = [kind for kind in kinds() if kind.__name__ != "BackfillTableReport"]


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: kind.__name__)
def test_a_report_of_every_kind_is_shown(kind: type[TableReport]) -> None:
    report = kind.model_construct(table="orders", outcome="done", until="merged")
    out = io.StringIO()
    show_report(
        JobReport(job="any", outcome="done", tables=(report,)), Console(file=out, width=200)
    )
    assert out.getvalue().splitlines()[0] == "orders  done"
