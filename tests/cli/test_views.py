"""Every report brings its own view, and every command speaks plainly of one thing."""

from __future__ import annotations

import io
import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from rich.console import Console

import memwal
from memwal.cli.app import app
from memwal.cli.commands import SECTIONS
from memwal.cli.console import show_report
from memwal.report import JobReport, TableReport

for found in pkgutil.walk_packages(memwal.__path__, "memwal."):
    if found.name.endswith((".report", ".restore.plan")):
        import_module(found.name)


def kinds(kind: type[TableReport] = TableReport) -> Iterator[type[TableReport]]:
    for below in kind.__subclasses__():
        yield below
        yield from kinds(below)


def test_there_are_reports() -> None:
    assert len(ALONE) >= 14


ALONE = [*kinds()]


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: kind.__name__)
def test_a_report_of_every_kind_is_shown(kind: type[TableReport]) -> None:
    places = {"dest": "copies", "trail": "trails/orders"}
    report = kind.model_construct(table="orders", outcome="done", until="merged", **places)
    out = io.StringIO()
    show_report(
        JobReport(job="any", outcome="done", tables=(report,)), Console(file=out, width=200)
    )
    assert out.getvalue().splitlines()[0] == "orders  done"


# Of everything one: a row, a shard, a generation, an index; then what there is nothing left of.
HOUR = """
init T --primary-key id --dry-run
init T --primary-key id
inspect shard T
doctor T
explain MW-W01
help options
ingest T ROW --dry-run
ingest T ROW
ingest T ROW
status T
inspect index T
inspect wal T
runs T
verify T
status T --until merged --timeout 1s
merge T --engine local --dry-run
merge T --engine local
merge T --engine local
index-catchup T --engine local --dry-run
index-catchup T --engine local
status T
snapshot T --dry-run
snapshot T
compaction T --engine local --dry-run
compaction T --engine local
status T --until indexed
ingest T OTHER
read T
read T --filter id=2 --explain
read T --version 1
read T --nearest v=[1,0] --k 1
changes T --since 1
checkpoint create T one
checkpoint list T
read T --checkpoint one
checkpoint drop T one
checkpoint list T
backup T COPIES --name one --dry-run
backup T COPIES --name one
backup list COPIES
backup verify COPIES
restore COPIES AGAIN --dry-run
restore COPIES AGAIN
backup drop COPIES one
erase T --key id=9
audit T --audit TRAILS
maintain T --engine local --dry-run
maintain T --engine local
garbage T --grace 0s
garbage T --grace 0s --allow-short-retention
garbage T --grace 0s --retention 0s --allow-short-retention --execute
garbage T --grace 0s --allow-short-retention --execute
ingest T BAD
ingest T BAD --bad-rows REJECTS
backfill T --engine local
watch T --once --engine local
rescue T --dry-run
rescue T --yes --idle 0s
repair T
repair T --execute --yes
quiesce T --yes --idle 0s --engine local --dry-run
quiesce T --yes --idle 0s --engine local
status T
verify T
lease break T --reason none
schema merge
submit merge T --dry-run --master local
demo DEMO --engine local
status MISSING
status ROW
merge T --engine locl
read T --filter nope=1
read T --columns nope
ingest T MISSING
"""


class Terminal(io.TextIOWrapper):
    """80 columns wide, and a file."""

    def isatty(self) -> bool:
        return True


def say(words: Sequence[str], place: Path) -> tuple[int, str]:
    """The exit code, and what a command prints in a terminal of 80 columns."""
    with (
        Terminal(place.open("w+b"), "utf-8", newline="") as screen,
        pytest.MonkeyPatch.context() as m,
    ):
        m.setattr(sys, "stdout", screen)
        m.setattr(sys, "stderr", screen)
        m.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as ended:
            app(list(words), prog_name="memwal")
        screen.flush()
        screen.seek(0)
        # A bar is taken away before anything else is said.
        shown = re.sub(r"\x1b\[[0-9]*[AK]|\r|\x1b\[\?25h", "\n", screen.read())
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    code = ended.value.code
    return code if isinstance(code, int) else 0, plain


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int, str]]:
    """Each line of HOUR, its exit code, and what it printed."""
    folder = tmp_path_factory.mktemp("hour")
    vector = pa.array([[1.0, 0.0]], pa.list_(pa.float32(), 2))
    row = pa.table({"id": [1], "note": ["a"], "v": vector})
    key = pa.field("id", pa.int64(), nullable=False)
    row = row.cast(row.schema.set(0, key))
    table = lance.write_dataset(row, str(folder / "t"), enable_stable_row_ids=True)
    table.create_scalar_index("id", "BTREE")
    (folder / "row.jsonl").write_text('{"id": 1, "note": "b", "v": [1, 0]}\n')
    (folder / "other.jsonl").write_text('{"id": 2, "note": "c", "v": [0, 1]}\n')
    (folder / "bad.jsonl").write_text('{"id": "x", "note": "c", "v": [0, 1]}\n')
    places = {
        "T": "t", "ROW": "row.jsonl", "OTHER": "other.jsonl", "BAD": "bad.jsonl",
        "REJECTS": "rejects.jsonl", "DEMO": "demo", "MISSING": "missing", "COPIES": "copies",
        "AGAIN": "./again", "TRAILS": "./trails",
    }  # fmt: skip
    here = Path.cwd()
    os.chdir(folder)
    try:
        return [
            (line, *say([places.get(word, word) for word in line.split()], folder / "screen"))
            for line in HOUR.strip().splitlines()
        ]
    finally:
        os.chdir(here)


@pytest.mark.nightly
@pytest.mark.integration
def test_an_hour_with_one_of_everything(hour: list[tuple[str, int, str]]) -> None:
    for line, code, shown in hour:
        text = re.sub(r"LanceRead: .*", "", shown)  # Lance's own words
        assert code in (0, 1, 2, 4, 5), (line, text)
        assert text.strip(), line
        assert not re.search(r"Traceback|unexpected|\bNone[,:;)]|\{[a-z_]+\}|\?\.", text), (
            line,
            text,
        )
        plurals = set(re.findall(r"(?<![\w.,:/+-])1 (\w{2,}s)\b", text)) - {
            "has",
            "is",
            "was",
            "drops",
        }
        assert not plurals, (line, text)
        # A sentence may be longer, so that a path or a command in it can be copied.
        tables = [x for x in text.splitlines() if "  " in x.strip() and not x.startswith("  ")]
        assert max(map(len, tables), default=0) <= 80, (line, text)
        told = [x.strip() for x in text.splitlines() if "error: " in x]
        assert len(told) == len(set(told)), (line, text)


def test_every_command_has_its_turn() -> None:
    commands = {line.split()[0] for line in HOUR.strip().splitlines()}
    assert commands == set(" ".join(SECTIONS.values()).split())
