"""The conformance table is sound: its tests exist, its quotes are the documents'."""

from __future__ import annotations

import sys

import pytest

from scripts import conformance
from tests.conformance import pairs
from tests.conformance.pairs import Pair

OF_THE_SPEC = {"naming", "manifests", "snapshots", "fencing", "wal", "merging", "sharding", "read"}
OF_OTHERS = {"ingest_coordination", "merge_operator", "slatedb_manifest", "zeppelin"}


def test_the_table_is_sound() -> None:
    assert pairs.problems(pairs.load()) == []


def test_every_area_is_there() -> None:
    areas = {
        document: {p.area for p in pairs.load() if p.document == document}
        for document in {pair.document for pair in pairs.load()}
    }
    assert areas.pop(pairs.SPEC) == OF_THE_SPEC
    assert sorted(areas.values(), key=str) == sorted(({area} for area in OF_OTHERS), key=str)


A_TEST = "tests/conformance/test_table.py::test_the_table_is_sound"


def pair(**changes: object) -> Pair:
    given = {"id": "a", "area": "x", "section": "S", "sentence": "T", "tests": (A_TEST,), **changes}
    return Pair(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tests": ("tests/conformance/test_table.py::test_none",)}, "no such test"),
        ({"tests": ("tests/no_file.py::test_none",)}, "no such test"),
        ({"tests": ()}, "neither a test nor a reason"),
        ({"pylance": "otherwise"}, "needs evidence"),
        ({"evidence": (A_TEST,)}, "needs evidence"),
        ({"evidence": ("tests/a.py::test_b",), "pylance": "so"}, "no such test"),
        ({"sentence": " "}, "no sentence"),
    ],
)
def test_a_table_that_is_not_sound_is_noticed(changes: dict[str, object], text: str) -> None:
    (problem,) = pairs.problems([pair(**changes)])
    assert text in problem


def test_ids_are_unique() -> None:
    assert pairs.problems([pair(), pair()]) == ["a: the id is there twice"]
    assert pairs.problems([pair(tests=(), reason="because"), pair(id="b")]) == []


def test_the_command_prints_every_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["conformance.py"])
    assert conformance.main() == 0
    told = capsys.readouterr().out
    assert [found.id for found in pairs.load() if found.id not in told] == []
    assert f"{len(pairs.load())} sentences" in told
