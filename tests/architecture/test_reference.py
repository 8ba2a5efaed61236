"""The generated pages are what the code and the promises say now: `make reference` writes them."""

from __future__ import annotations

import re
from functools import cache

import pytest

from memwal.cli.schema import VERSION
from memwal.config.known_names import VARIABLES
from scripts import guarantees
from scripts.guarantees import read_holders, read_promises, write_page
from scripts.reference import PAGES, check_version, list_keys, write_pages
from tests.architecture.files import modules

written = cache(write_pages)


def test_a_page_is_what_the_code_says() -> None:
    for name, text in written().items():
        assert (PAGES / name).read_text() == text, "run: make reference"


def test_every_variable_is_named() -> None:
    known = {*VARIABLES, *(key["variable"] for key in list_keys())}
    texts = [text for name, text in modules().items() if name.startswith(("memwal/", "jobs/"))]
    found = {name for text in texts for name in re.findall(r'"(MEMWAL_[A-Z_]+[A-Z])"', text)}
    assert found - known == set()
    assert found >= {"MEMWAL_CONFIG", "MEMWAL_RUN_ID"}


def test_a_field_that_goes_raises_the_version() -> None:
    page = written()["documents.md"]
    less = page.replace("tables[].safe: boolean\n", "")
    assert check_version(page, less) == []
    assert check_version(less, page) == ["quiesce: tables[].safe: boolean"]
    assert check_version(less, page.replace(f"version {VERSION}:", "version 0:")) == []


def test_the_page_tells_what_holds_each_promise() -> None:
    holders = read_holders()
    assert guarantees.PAGE.read_text() == write_page(read_promises(), holders), (
        "run: make reference"
    )
    assert len(holders) > 20
    assert all(each.get("tests") or each.get("models") for each in holders.values())


@pytest.mark.parametrize(
    ("page", "holders", "says"),
    [
        ("it", {"it": {"tests": ["tests/store/test_lease.py::test_of_nobody"]}}, "no such test"),
        ("it", {"it": {"models": ["merging: a variant of nobody"]}}, "no such model"),
        ("bare", {}, "bare"),
        ("it", {"it": {}, "left": {"tests": ["tests/store/test_lease.py"]}}, "left"),
    ],
)
def test_what_does_not_go_together_is_refused(
    page: str, holders: guarantees.Holders, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        write_page(f"A promise.\n\n<!--held:{page}-->\n", holders)


def test_a_promise_is_told_without_its_links() -> None:
    promises = "More.\n\nA [promise](x.md).\n\n<!--held:it-->\n"
    page = write_page(promises, {"it": {"tests": ["tests/store/test_lease.py"]}})
    assert page.endswith("## it\n\nA promise.\n\n- `tests/store/test_lease.py`\n")
