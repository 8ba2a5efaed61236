"""Runs that end at a step, as those of a dead process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memwal.store.shards.writers import OpenShard


@pytest.fixture
def stalled(monkeypatch) -> Iterator[list[OpenShard]]:
    """Writers of runs that were stopped are not closed, as those of a dead process."""
    left: list[OpenShard] = []
    monkeypatch.setattr(OpenShard, "abandon", lambda shard: left.append(shard))
    yield left
    for shard in left:
        try:
            shard._writer.close()
        except OSError:
            continue
