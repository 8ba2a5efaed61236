from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.jobs.erase.people import People, make_people


@pytest.fixture(scope="session")
def made_people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return make_people(tmp_path_factory.mktemp("people"))


@pytest.fixture
def table(made_people: People, tmp_path: Path) -> People:
    """400 people: rows merged twice, one pending, one in the WAL of a writer that is gone."""
    shutil.copytree(made_people.uri, tmp_path / "t")
    return replace(made_people, uri=str(tmp_path / "t"), open_writers=[])
