"""What Lance says, as we repeat it."""

from __future__ import annotations

import time

import pytest

from memwal.store.tables.lance_calls import tidy_text


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Not found: a/_versions, /home/runner/lance/rust/lance-table/src/io/commit.rs:653:26, "
            "/home/runner/lance/rust/lance/src/dataset/builder.rs:921:29",
            "Not found: a/_versions",
        ),
        (
            "no file (/root/.cargo/registry/src/index-1949cf8c/lance/src/io.rs:3)",
            "no file ()",
        ),
        ("/data/t.rs is no table\nmore", "/data/t.rs is no table"),
        ("", "ValueError"),
    ],
)
def test_places_in_its_source_are_left_out(said: str, told: str) -> None:
    assert tidy_text(ValueError(said)) == told


@pytest.mark.parametrize("path", ["/a", "(/a", "/", "/a.rs:", ", /a", ".rs:1"])
def test_no_path_keeps_us_busy(path: str) -> None:
    """Names of columns, files and folders are in the text, and are whoever's choice."""
    began = time.process_time()
    tidy_text(ValueError(path * 60_000))
    assert time.process_time() - began < 2  # by the square of its length it takes minutes
