"""Which pylance may be installed, and which was tested."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from memwal.errors import Unsupported
from memwal.run import stores
from memwal.run.stores import TESTED_LANCE_MAJORS, check_lance_version

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_what_is_installed_is_what_was_tested() -> None:
    needed = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["jobs"]
    (pylance,) = [text for text in needed if text.startswith("pylance")]
    assert pylance == f"pylance>={TESTED_LANCE_MAJORS[0]},<{TESTED_LANCE_MAJORS[-1] + 1}"


def test_only_tested_majors_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for major in TESTED_LANCE_MAJORS:
        monkeypatch.setattr(stores, "lance_version", lambda major=major: f"{major}.1.0-beta.2")
        check_lance_version(allowed=False)
    for other in (TESTED_LANCE_MAJORS[0] - 1, TESTED_LANCE_MAJORS[-1] + 1):
        monkeypatch.setattr(stores, "lance_version", lambda other=other: f"{other}.0.0")
        check_lance_version(allowed=True)
        with pytest.raises(Unsupported, match="--allow-untested-lance"):
            check_lance_version(allowed=False)
