"""Threads that a read leaves to the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwal.errors import BadCredentials
from memwal.read import open_table
from memwal.read.store.sources import KEPT_BYTES_MAX, Kept, share_opened
from memwal.read.store.threads import map_in_order
from tests.support import builders
from tests.support.builders import Put
from tests.support.forked import in_child


def nest(number: int) -> list[int]:
    return [twice for _, twice in map_in_order(lambda n: n * 2, range(number), 2)]


def test_work_inside_work_and_work_that_ends_early_leave_nothing_behind() -> None:
    for _ in range(3):
        assert [found for _, found in map_in_order(nest, range(4), 2)] == [
            [], [0], [0, 2], [0, 2, 4],
        ]  # fmt: skip
        started = map_in_order(lambda n: 1 // (33 - n), range(40), 2)
        assert next(started) == (0, 0)
        with pytest.raises(ZeroDivisionError):
            list(started)


def test_what_is_kept_has_a_bound_and_the_oldest_goes() -> None:
    kept = Kept[str]()
    for name in "abc":
        kept.keep(name, name.upper(), KEPT_BYTES_MAX // 3)
    assert kept.find("a") == "A"
    kept.keep("d", "D", KEPT_BYTES_MAX // 3)
    kept.keep("d", "E", KEPT_BYTES_MAX // 3)
    assert [kept.find(name) for name in "abcd"] == ["A", None, "C", "E"]


def test_what_was_opened_is_shared_as_long_as_credentials_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = share_opened("s3://bucket/a", {"aws_access_key_id": "me"})
    assert share_opened("s3://bucket/b", {"aws_access_key_id": "me"}) is mine
    assert share_opened("s3://bucket/a", {"aws_access_key_id": "you"}) is not mine
    with monkeypatch.context() as other:
        other.setenv("AWS_PROFILE", "other")
        assert share_opened("s3://bucket/a", {"aws_access_key_id": "me"}) is not mine
    assert share_opened("s3://bucket/a", {"aws_access_key_id": "me"}) is mine
    with pytest.raises(BadCredentials), mine.forgetting():
        raise BadCredentials("expired")
    assert share_opened("s3://bucket/a", {"aws_access_key_id": "me"}) is not mine


@pytest.mark.integration
def test_what_is_kept_of_a_generation_is_for_those_with_its_credentials(tmp_path: Path) -> None:
    """Its open files read on with the credentials that opened them, which may have expired."""
    table = builders.make_table(tmp_path / "t")
    table.flush(table.shards[0], Put([1], 1))

    def identify(user: str) -> str:
        opened = open_table(table.uri, {"aws_access_key_id": user})
        view = opened.at(None)
        (shard,) = view.shards
        return opened.generations.open(view, shard.shard_id, shard.pending[0]).identity

    assert identify("me") == identify("me") != identify("you")


@pytest.mark.integration
def test_a_forked_child_is_told_at_once(tmp_path: Path) -> None:
    """It would wait forever for files of generations that its parent has open."""
    table = builders.make_table(tmp_path / "t", rows=range(3))
    table.flush(table.shards[0], Put([7], 1))
    opened = open_table(table.uri)
    opened.read().read_all()
    for act in (lambda: open_table(table.uri).read(), lambda: opened.read().read_all()):
        assert "start processes with spawn or forkserver" in in_child(act)
    assert opened.read().read_all().num_rows == 4
