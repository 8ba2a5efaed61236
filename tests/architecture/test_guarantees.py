"""The page of guarantees: below each promise stands what holds it, and that exists."""

from __future__ import annotations

import pytest

from scripts.guarantees import PAGE, read_holders, write_notes


def test_the_notes_are_what_the_promises_are_held_by() -> None:
    assert PAGE.read_text() == write_notes(PAGE.read_text(), read_holders()), "run: make reference"


def test_there_are_tests_and_models() -> None:
    held = read_holders().values()
    assert sum(len(each.get("tests", ())) for each in held) > 60
    assert sum(len(each.get("models", ())) for each in held) > 10
    assert all(each.get("tests") or each.get("models") for each in held)


@pytest.mark.parametrize(
    "holder",
    [
        {"tests": ["tests/store/test_lease.py::test_that_nobody_wrote"]},
        {"tests": ["tests/store/test_of_nothing.py"]},
        {"models": ["merging: a variant that nobody wrote"]},
        {"models": ["nothing"]},
    ],
)
def test_what_does_not_exist_is_refused(holder: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="no such"):
        write_notes("<!-- held: it -->\n", {"it": holder})


def test_a_promise_without_holders_and_holders_without_a_promise_are_refused() -> None:
    with pytest.raises(ValueError, match="bare"):
        write_notes("<!-- held: bare -->\n", {})
    with pytest.raises(ValueError, match="left"):
        write_notes("", {"left": {"tests": ["tests/store/test_lease.py"]}})


def test_a_note_is_written_anew() -> None:
    page = "A promise.\n\n<!-- held: it -->\n\nMore.\n"
    once = write_notes(page, {"it": {"tests": ["tests/store/test_lease.py"]}})
    assert "- `tests/store/test_lease.py`\n\n</details>\n\nMore." in once
    again = write_notes(once, {"it": {"models": ["merging"]}})
    assert "test_lease" not in again and again.count("<details") == 1
