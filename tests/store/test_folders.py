"""Which tables are below a folder, and what it costs to find out."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.config import Config, find_names
from memwal.errors import Usage
from memwal.store.tables import folders
from memwal.store.tables.folders import find_tables
from memwal.testing.objects import MemoryObjects
from tests.support import builders


def make(*paths: str) -> MemoryObjects:
    objects = MemoryObjects()
    for path in paths:
        objects.put(path, b"x")
    return objects


def test_tables_are_found_by_their_versions_or_their_names() -> None:
    objects = make(
        "a.lance/_versions/1.manifest",
        "a.lance/data/b.lance",
        "team/plain/_versions/1.manifest",
        "team/plain/data/nested/_versions/1.manifest",
        "team/db/c.lance/_versions/1.manifest",
        "team/readme.txt",
        "_maintenance/d.lance/_versions/1.manifest",
        ".trash/e.lance/_versions/1.manifest",
    )
    assert find_tables(objects) == ["a.lance", "team/db/c.lance", "team/plain"]


def test_a_table_is_one() -> None:
    assert find_tables(make("_versions/1.manifest", "data/a.lance")) == [""]


def test_none() -> None:
    assert find_tables(make()) == []


def test_a_database_of_many_tables_costs_one_listing() -> None:
    objects = make(*(f"t{i}.lance/_versions/1.manifest" for i in range(50)))
    before = objects.counts.list
    assert len(find_tables(objects)) == 50
    assert objects.counts.list - before == 1


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Usage, match="nested"):
        find_tables(make("/".join("abcdefgh") + "/i/_versions/1.manifest"))
    monkeypatch.setattr(folders, "TABLES_MAX", 2)
    with pytest.raises(Usage, match="more than 2"):
        find_tables(make("a.lance/x", "b.lance/x", "c.lance/x"))


@pytest.mark.parametrize(
    ("given", "below", "named"),
    [
        ("lake/", ["a.lance", "sub/b"], ["lake/a.lance", "lake/sub/b"]),
        ("s3://lake/a.lance/", [""], ["s3://lake/a.lance"]),
        ("lake/", [], ["lake"]),
        ("lake", ["a.lance"], ["lake"]),
    ],
)
def test_a_slash_means_the_tables_below(given: str, below: list[str], named: list[str]) -> None:
    assert find_names([given], Config(), lambda glob: below) == named


@pytest.mark.integration
def test_a_command_on_one_table_takes_no_folder(tmp_path: Path) -> None:
    builders.make_table(tmp_path / "lake" / "a.lance", rows=range(2), shards=1)
    done = CliRunner().invoke(app, ["read", f"{tmp_path}/lake/"])
    assert (done.exit_code, "not a Lance table" in done.output) == (2, True)
