"""Merging, index catch-up and compaction beside each other, with no lease between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from memwal.config import Settings
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.index_catchup.plan import Method
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.jobs.merge.request import MergeRequest
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.indexed import COLUMNS, check_caught_up, facts_of, make_indexed, resolved
from tests.support.progress import Quiet

pytestmark = pytest.mark.nightly

NAMES = ("key_idx", "cat_idx", "text_idx", "flat_idx")
GENERATIONS = 12


def merge_steadily(table: Table, shard: str, over: threading.Event) -> None:
    """Flush and merge one generation after the other, with old and new keys in each."""
    offset = 40 * table.shards.index(shard)  # type: ignore[arg-type]
    for number in range(1, GENERATIONS + 1):
        start = offset + (number % 4) * 10
        table.flush(
            shard,  # type: ignore[arg-type]
            Put(
                [
                    *range(start, start + 10),
                    *range(1000 * (offset + number), 1000 * (offset + number) + 5),
                ],
                n=10_000 * number + offset,
                extra={c.name: None for c in COLUMNS} | {"category": f"g{number}"},
            ),
        )
        done = table.merger().run(shard, MergeRequest())  # type: ignore[arg-type]
        assert done.error is None, done
    over.set()


def catch_up(table: Table, method: Method | None = None) -> int:
    options = IndexCatchupOptions(
        tables=[resolved(table).with_settings(Settings(segment_rows_min=40))],
        engine="local",
        lease=False,
        request=CatchupRequest(method=method or "auto"),  # type: ignore[arg-type]
    )
    return run_index_catchup(options, Quiet()).exit_code


def compact(table: Table) -> int:
    options = CompactionOptions(tables=[resolved(table)], engine="local", lease=False)
    return run_compaction(options, Quiet()).exit_code


def check_claims(table: Table) -> None:
    """In no version is an index said to be at the merged generation that lacks a fragment.

    Compaction would leave such claims for zone maps and bloom filters, which it can't remap.
    """
    for version in table.versions():
        mem_wal = table.stores.table_manifests.read(version).mem_wal
        if mem_wal is None or not mem_wal.merged:
            continue
        found = facts_of(table, version)
        for index in found.indexes:
            if mem_wal.index_catchup.get(index.name) == mem_wal.merged:
                assert not found.uncovered(index), (version, index.name)


def test_every_index_ends_caught_up_and_no_claim_is_too_high(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", NAMES, shards=2, rows=100)
    overs = [threading.Event() for _ in table.shards]
    errors: list[BaseException] = []
    codes: dict[str, list[int]] = {"append": [], "segments": [], "compaction": []}

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                for over in overs:
                    over.set()

        return run

    def repeat(name: str, work: Callable[[], int]) -> Callable[[], None]:
        def run() -> None:
            while not all(over.is_set() for over in overs):
                codes[name].append(work())

        return run

    threads = [
        threading.Thread(target=guarded(lambda s=s, o=o: merge_steadily(table, s, o)))
        for s, o in zip(table.shards, overs, strict=True)
    ]
    threads += [
        threading.Thread(target=guarded(repeat("append", lambda: catch_up(table)))),
        threading.Thread(
            target=guarded(repeat("segments", lambda: catch_up(table, Method.SEGMENTS)))
        ),
        threading.Thread(target=guarded(repeat("compaction", lambda: compact(table)))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    # Lost races may end a run; nothing else may.
    assert {code for found in codes.values() for code in found} <= {0, 4, 6}
    assert all(0 in found for found in codes.values()), codes
    builders.check_merged(table)
    check_claims(table)
    assert catch_up(table) == 0
    check_caught_up(table, NAMES)
    assert compact(table) == 0
    check_caught_up(table, NAMES)
    builders.check_merged(table)
