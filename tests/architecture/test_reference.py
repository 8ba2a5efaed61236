"""The reference pages are what the code says now: `make reference` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memwal.cli.config import list_keys
from memwal.cli.documents import VERSION
from memwal.config.known_names import VARIABLES
from scripts.reference import PAGES, check_version, write_pages

ROOT = PAGES.parents[1]


@pytest.mark.parametrize("name", ["reference.md", "documents.md"])
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert (PAGES / name).read_text() == write_pages()[name], "run: make reference"


def test_every_variable_is_named() -> None:
    known = {*VARIABLES, *(key["variable"] for key in list_keys())}
    found: set[str] = set()
    for folder in ("memwal", "jobs", "dags"):
        for file in Path(ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r'"(MEMWAL_[A-Z_]+[A-Z])"', file.read_text()))
    assert found - known == set()
    assert found >= {"MEMWAL_CONFIG", "MEMWAL_RUN_ID"}


def test_a_field_that_goes_raises_the_version() -> None:
    page = write_pages()["documents.md"]
    less = page.replace("tables[].safe: boolean\n", "")
    assert check_version(page, less) == []
    assert check_version(less, page) == ["quiesce: tables[].safe: boolean"]
    assert check_version(less, page.replace(f"version {VERSION}:", "version 0:")) == []
