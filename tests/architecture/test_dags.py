"""DAG files are thin: they are parsed all the time, so they put things together and do nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "dags").glob("*.py"))
MAY_IMPORT = ("__future__", "airflow.sdk", "memwal_airflow")
LINES_MAX = 120


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def may_import(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in MAY_IMPORT)


def test_there_are_the_dags_that_the_issue_names() -> None:
    names = ("backfill", "compaction", "garbage", "index_catchup", "merge", "snapshot")
    assert {file.name for file in FILES} >= {f"memwal_{name}.py" for name in names}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dag_imports_only_airflow_and_our_package(file: Path) -> None:
    assert [module for module in imported(file) if not may_import(module)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dag_file_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= LINES_MAX


def test_the_check_tells_modules_apart() -> None:
    assert may_import("airflow.sdk.exceptions")
    assert not may_import("airflow.sdkish")
    assert not may_import("airflow.models")
    assert not may_import("memwal.config")
