"""What the page says is wrong with a table, since when, and what to do about it."""

from __future__ import annotations

import ast
import re

import pytest
from local_airflow.home import ROOT
from memwal_airflow.page.advice import ROWS, find_advice, read_rows

OPERATING = read_rows("OPERATING.md", "When something is in the way")


def list_messages() -> set[str]:
    """Every text in the code of memwal and of the page; … for what is filled in."""
    found = set()
    for folder in (ROOT / "memwal", ROOT / "airflow_plugins/memwal_airflow"):
        for file in folder.rglob("*.py"):
            if file.name == "advice.py":
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [p.value if isinstance(p, ast.Constant) else "7" for p in node.values]
                    found.add("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


MESSAGES = list_messages()


@pytest.mark.parametrize(("pattern", "begins"), ROWS)
def test_advice_is_a_row_of_the_page_and_fits_what_memwal_says(pattern: str, begins: str) -> None:
    assert len([says for says, _ in OPERATING if says.startswith(begins)]) == 1
    assert any(re.search(pattern, text) for text in MESSAGES)


def test_every_row_of_the_page_is_advice_for_something() -> None:
    assert len(OPERATING) == len({begins for _, begins in ROWS}) > 20


def test_commands_name_the_table_where_a_shell_takes_the_name() -> None:
    text = "shard 3c6ef372 looks abandoned: 5 WAL entries"
    assert find_advice(text, None, "orders-2") == (
        "`memwal rescue orders-2` once its writer is known to be gone"
    )
    assert "rescue TABLE`" in str(find_advice(text, None, "a; rm -rf /"))


def test_what_no_row_knows_goes_by_the_exit_code() -> None:
    assert "run again" in str(find_advice("the last merge failed: odd", 6, "orders"))
    assert find_advice("odd", None, "orders") is None
