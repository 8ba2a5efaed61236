"""The merge, run as the jobs run it, and what a user would write instead. Shared by cases."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from bench.harness import Bench, folder_bytes
from memwal.jobs.merge.job import MergeResult, MergeUnit, report_shards, run_merge_unit
from memwal.jobs.merge.plan import MergeLimits, group_shards
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.ports import Engine
from memwal.run.engines.pool import LocalEngine
from memwal.run.stores import open_stores


@dataclass(frozen=True, kw_only=True)
class Merged:
    """One merge of all that was pending. `bytes_written` are new files of the base, manifests too;
    `rows_bytes` the Arrow bytes of the rows that changed hands.
    """

    seconds: float
    merges: Sequence[ShardReport]
    results: Sequence[MergeResult]
    bytes_written: int

    def costs(self, rows_bytes: int) -> dict[str, float]:
        """What stands beside the time in a figure."""
        return {
            "bytes read": sum(m.bytes_read for m in self.merges),
            "bytes written": self.bytes_written,
            "write amplification": self.bytes_written / rows_bytes,
            "commits": sum(m.commits - m.commits_shared for m in self.merges),
            "conflicts": sum(m.conflicts for m in self.merges),
            "requests beside Lance's": sum(
                count
                for result in self.results
                for name, count in result.requests.items()
                if name in ("list", "get", "put", "delete")
            ),
        }


def merge(table: Path, engine: Engine | None = None, limits: MergeLimits | None = None) -> Merged:
    """Open the table, view it, and merge its shards on the engine (default: the local one).

    Raises RuntimeError when a shard is not merged.
    """
    before = _base_bytes(table)
    started = time.perf_counter()
    views = open_stores(str(table), {}).views
    view = views.table()
    lineage = views.lineage(view, view.shards)
    limits = limits or MergeLimits()
    units = [
        MergeUnit(
            uri=str(table),
            storage_options={},
            shard_ids=shard_ids,
            request=MergeRequest(),
            limits=limits,
            lineage=lineage.part(shard_ids),
        )
        for shard_ids in group_shards(view, view.shards, MergeRequest(), limits)
    ]
    results = (engine or LocalEngine()).run(run_merge_unit, units, lambda done: None)
    seconds = time.perf_counter() - started
    merges: list[ShardReport] = []
    for unit, result in zip(units, results, strict=True):
        merges += report_shards(unit, result)
        if any(merge.outcome != "done" for merge in merges):
            raise RuntimeError(f"{merges}\n{result.trace}")
    return Merged(
        seconds=seconds,
        merges=merges,
        results=results,
        bytes_written=_base_bytes(table) - before,
    )


def merge_copy(bench: Bench, origin: Path, seen: list[Merged], **how: Any) -> float:
    """Merge a copy of a table; adds to `seen`, returns the seconds of the merge alone."""
    table = bench.copy(origin)
    seen.append(merge(table, **how))
    shutil.rmtree(table)
    return seen[-1].seconds


def pending_uris(table: Path) -> list[str]:
    """The pending generations of a table, oldest first, a shard after the other."""
    view = open_stores(str(table), {}).views.table()
    return [
        f"{table}/_mem_wal/{shard.shard_id}/{generation.path}"
        for shard in view.shards
        for generation in shard.pending
    ]


def generation_rows(uri: str) -> pa.Table:
    """A generation as rows of the base. Knows no deletes."""
    rows = lance.dataset(uri).to_table()
    return rows.drop_columns([name for name in rows.column_names if name == "_tombstone"])


def user_loop(table: Path, generations: Sequence[str]) -> None:
    """What a user would write: a merge-insert of default settings for each generation."""
    for uri in generations:
        (
            lance.dataset(str(table))
            .merge_insert(["id"])
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(generation_rows(uri))
        )


def survivors(generations: Sequence[str]) -> pa.Table:
    """The last row of each key."""
    rows = pa.concat_tables([generation_rows(uri) for uri in generations])
    _, places = np.unique(rows["id"].to_numpy()[::-1], return_index=True)
    return rows.take(pa.array(np.sort(len(rows) - 1 - places))).combine_chunks()


def floor(table: Path, generations: Sequence[str], rows: pa.Table, out: Path) -> None:
    """The least that any merge does: read all generations, write the rows, scan the base's keys."""
    for uri in generations:
        lance.dataset(uri).to_table()
    lance.write_dataset(rows, str(out))
    lance.dataset(str(table)).to_table(columns=["id"])


def plain_merge(
    table: Path, generations: Sequence[str], rows: pa.Table, deleted: pa.Table | None = None
) -> None:
    """The least that pylance's own merge does: read all generations, and merge-insert their rows,
    folded beforehand. Keys that are deleted take one more.
    """
    for uri in generations:
        lance.dataset(uri).to_table()
    base = lance.dataset(str(table))
    if deleted is not None:
        base.merge_insert(["id"]).when_matched_delete().use_index(False).execute(deleted)
    (
        base.merge_insert(["id"])
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .use_index(False)
        .execute(rows)
    )


def _base_bytes(table: Path) -> int:
    return folder_bytes(table) - folder_bytes(table / "_mem_wal")
