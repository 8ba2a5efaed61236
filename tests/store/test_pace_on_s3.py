"""What arrives at a server, of all that ask it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.counted_s3 import CountedS3
from tests.support import builders
from tests.support.builders import Put
from tests.support.watching import Watch

pytestmark = [pytest.mark.nightly, pytest.mark.races]


@pytest.fixture(scope="module")
def server() -> Iterator[CountedS3]:
    with CountedS3() as running:
        yield running


def test_a_watch_and_lance_hold_it_together(server: CountedS3, tmp_path: Path) -> None:
    """The watch's own looks, its workers' requests, and those that Lance makes in them."""
    rate, names = 100, ["a", "b"]  # without it, 137 arrive in a second
    for name in names:
        table = builders.make_table(tmp_path / name, rows=range(20), indexed=True)
        table.flush(table.shards[0], Put([1, 30], 1))
        server.load(tmp_path / name, "lake", name)
    words = [f"s3://lake/{name}" for name in names] + ["--once", "--json"]
    words += [*server.arguments, "--storage-option", f"requests_per_second_max={rate}"]
    arrived: list[tuple[float, int]] = []
    server.forget()
    with Watch(
        [*words, "--storage-option", f"requests_per_second_max={rate}", "--once", "--json"],
        tmp_path,
    ) as run:
        while run.ended_with() is None:
            arrived.append((time.monotonic(), server.seen().requests))
            time.sleep(0.1)
        assert run.wait(60) == 0, run.stderr()
    assert arrived[-1][1] > 100
    busiest = max(
        later - seen for at, seen in arrived for then, later in arrived if 0 <= then - at <= 1
    )
    assert busiest <= rate * 1.1
