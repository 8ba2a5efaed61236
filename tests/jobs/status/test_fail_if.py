"""Conditions of `status --fail-if`: how they are read, what they go by, and what comes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memwal.errors import Corruption, Usage
from memwal.jobs.status.plan import WalSize, parse_condition, take_state
from memwal.model import BrokenShard, ShardId, ShardView, TableView
from tests.support import builders
from tests.support.builders import Put
from tests.support.command import run_here
from tests.support.views import make_generation, make_shard, make_state, make_version, make_view

A, B = ShardId("a"), ShardId("b")
NOW = 1_000 * 10**9
WALS = [
    WalSize(wal_entries=1, abandoned=True, unflushed_at_nanos=NOW - 7 * 10**9),
    WalSize(wal_entries=0),
]


# ---- reading them


@pytest.mark.parametrize(
    ("text", "below", "above"),
    [
        ("pending_generations > 3", 3, 4),
        ("pending_bytes>=1GiB", 2**30 - 1, 2**30),
        (" pending_bytes > 1.5 MB ", 1_500_000, 1_500_001),
        ("oldest_pending_seconds > 5m", 300, 300.1),
        ("index_lag_generations == 2", 1, 2),
        ("reclaimable_bytes < 10", 10, 9),
        ("abandoned_shards <= 0", 1, 0),
        ("backup-age>1d", 86_400, 86_401),
    ],
)
def test_a_condition_is_a_word_an_operator_and_a_number(
    text: str, below: float, above: float
) -> None:
    condition = parse_condition(text)
    assert (condition.holds(below), condition.holds(above)) == (False, True)
    assert condition.holds(None)  # nobody can tell that it does not
    assert condition.text == text.strip()
    assert "not known" in condition.describe(None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pendin_bytes > 3", "'pendin_bytes' (is pending_bytes meant?); the words are pending_gen"),
        ("pending_bytes => 3", "unknown operator '=>'; expected one of > >= < <= =="),
        ("pending_bytes", "unknown operator ''"),
        ("pending_bytes > much", "expected bytes, such as 268435456, 256MB or 1GiB"),
        ("oldest_pending_seconds > 5 weeks", "expected seconds, such as 90, or 90s"),
        ("abandoned_shards > 1.5", "'1.5': expected a count"),
    ],
)
def test_what_is_no_condition_is_named_with_what_there_is(text: str, named: str) -> None:
    with pytest.raises(Usage) as refused:
        parse_condition(text)
    assert str(refused.value).startswith(f"--fail-if {text!r}: ")
    assert named in str(refused.value)


# ---- what they go by


def shard(name: ShardId, age: float | None, *sizes: int | None, merged: int = 0) -> ShardView:
    listed = [make_generation(n, size) for n, size in enumerate(sizes, start=1)]
    at = None if age is None else NOW - round(age * 1e9)
    return replace(make_shard(name, listed, merged=merged), oldest_pending_flushed_at_nanos=at)


def known(view: TableView, wals: list[WalSize]) -> dict[str, Any]:
    return take_state(view, NOW, wals).known()


def test_measures_are_of_all_shards() -> None:
    state = make_state(merged={A: 2, B: 1}, index_catchup={"one": {A: 2, B: 1}, "two": {A: 1}})
    view = make_view(
        shard(A, 40, 5, 6, 70, 80, merged=2),
        shard(B, 90, 1, 2, merged=1),
        state=state,
        manifest=make_version(state, "one", "two", "__lance_frag_reuse"),
    )
    found = known(view, WALS)
    assert (found["pending_generations"], found["pending_bytes"]) == (3, 152)
    assert (found["oldest_pending_seconds"], found["abandoned_shards"]) == (90, 1)
    assert (found["index_lag_generations"], found["reclaimable_bytes"]) == (1, 5)
    assert found["unflushed_seconds"] == 7
    # Of an index of which nothing is recorded, nothing is known to be in it.
    view = replace(view, manifest=make_version(state, "one", "three"))
    assert known(view, WALS)["index_lag_generations"] == 2


def test_what_is_not_known_of_every_shard_is_not_known() -> None:
    one = shard(A, 40, 5)
    found = known(make_view(one, shard(B, None, None)), WALS)
    assert (found["pending_generations"], found["pending_bytes"]) == (2, None)
    assert found["oldest_pending_seconds"] is None
    # A WAL that was not listed may be abandoned.
    for word in ("abandoned_shards", "unflushed_seconds"):
        assert known(make_view(one), [WalSize()])[word] is None
    torn = (BrokenShard(shard_id="c", error=Corruption("MW-M01", "torn")),)
    found = known(make_view(one, broken=torn), WALS[:1])
    assert found.keys() == {"index_lag_generations"}

    idle = known(make_view(shard(A, None, 5, merged=1)), WALS[:1])
    assert (idle["pending_generations"], idle["pending_bytes"]) == (0, 0)
    assert idle["oldest_pending_seconds"] == 0


# ---- what comes of them


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables: `late`, with two generations pending, and `idle`."""
    late = builders.make_table(tmp_path / "late", rows=range(3))
    for number in range(2):
        late.flush(late.shards[0], Put([number], number))
    builders.make_table(tmp_path / "idle", rows=range(3))
    monkeypatch.chdir(tmp_path)
    return tmp_path


Ended = tuple[int, dict[str, Any], str]


def status(*arguments: str) -> Ended:
    done = run_here("status", *arguments, "--json")
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.integration
def test_exit_code_3_says_which_table_and_which_condition(folder: Path) -> None:
    both = ("--fail-if", "pending_generations > 1", "--fail-if", "oldest_pending_seconds > 1d")
    code, document, err = status("late", "idle", *both)
    late, idle = document["tables"]
    assert (code, document["outcome"]) == (3, "failed")
    assert late["failed_conditions"] == [{"condition": "pending_generations > 1", "value": 2}]
    assert (late["outcome"], idle["outcome"], idle["failed_conditions"]) == ("failed", "done", [])
    assert "late: --fail-if 'pending_generations > 1': pending_generations is 2" in err

    code, document, err = status("late", "idle", "--fail-if", "pending_generations > 2")
    assert (code, document["outcome"]) == (0, "done")
    assert document["tables"][0]["pending_generations"] == 2

    # What can't be looked at keeps its own exit code, and the condition is told as well.
    code, document, err = status("late", "gone", *both)
    assert (code, status("gone", *both)[0]) == (6, 2)
    assert "late: --fail-if" in err and "gone: no such table" in err


@pytest.mark.integration
def test_a_table_that_is_damaged_keeps_its_own_exit_code(folder: Path) -> None:
    for manifest in folder.glob("late/_mem_wal/*/manifest/*.binpb"):
        manifest.write_bytes(b"torn")
    code, document, _ = status("late", "--fail-if", "pending_bytes > 1TiB")
    (late,) = document["tables"]
    assert (code, late["outcome"], late["pending_bytes"]) == (8, "failed", None)
    assert late["failed_conditions"] == [{"condition": "pending_bytes > 1TiB", "value": None}]
    assert "pending_bytes is not known, which counts as holding" in late["error"]


@pytest.mark.integration
def test_a_wrong_condition_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    code, document, _ = status(str(tmp_path / "gone"), "--fail-if", "rows > 3")
    assert (code, document["tables"]) == (2, [])
    assert "unknown word 'rows'" in document["error"]
