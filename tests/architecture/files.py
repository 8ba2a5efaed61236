"""The files of the project, without asking git: unit tests start no process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("memwal", "jobs", "scripts", "airflow_plugins", "dags")
FOLDERS = (*CODE, "bench", "docs", "proto", "tests", ".ci", ".github")


@cache
def texts() -> dict[str, str]:
    """The text of each file, by its path."""
    return {str(file.relative_to(ROOT)): file.read_text(errors="replace") for file in _files()}


def _files() -> Iterator[Path]:
    yield from (file for file in ROOT.iterdir() if file.is_file() and file.name != ".git")
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and not {"__pycache__", ".pytest_cache"} & set(file.parts):
                yield file


def pages() -> dict[str, str]:
    """The text of each page."""
    return {name: text for name, text in texts().items() if name.endswith(".md")}


def modules() -> dict[str, str]:
    """The text of each module that is shipped or run."""
    return {
        name: text
        for name, text in texts().items()
        if name.endswith(".py") and name.startswith(CODE) and "_generated" not in name
    }
