"""Files that were yet to be put in their place when the run, or the writer, was killed.

Runs stage them under `_maintenance/tmp/`; on a local disk, pylance does so beside WAL entries. A
writer that was stopped for a day and finds such a file gone fails to put its entry: it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

from memwal.format import layout
from memwal.jobs.garbage.model import ORPHAN, Item, plan_delete
from memwal.jobs.garbage.survey import Survey
from memwal.model import StoredFile
from memwal.ports import Objects

NAME = "leftover"


def read_evidence(objects: Objects, pool: Executor) -> tuple[StoredFile, ...]:
    """Every file below the staging folder; the others are in the evidence of their shards."""
    return tuple(objects.list(layout.STAGING))


def find_items(survey: Survey) -> Iterator[Item]:
    """Every staged file; those older than `leftover_age_seconds` go."""
    cutoff = survey.now_nanos - round(survey.limits.leftover_age_seconds * 1e9)
    staged: list[StoredFile] = [*survey.evidence.outside.get(NAME, ())]
    staged += (file for found in survey.evidence.shards.values() for file in found.staged)
    for file in staged:
        young = file.modified_at_nanos > cutoff
        yield plan_delete(
            ORPHAN,
            file.path,
            (file,),
            why="staged by a run or a writer that was killed",
            held="may be staged by one that goes on" if young else None,
        )


def may_delete(item: Item) -> bool:
    """Whether it lies below the staging folder, or beside what it was to become."""
    match item.path.split("/"):
        case [layout.MEM_WAL, shard, "wal" | "manifest", name] if item.kind == ORPHAN:
            return layout.is_shard_folder(shard) and layout.is_staged(name)
    return item.path.startswith(f"{layout.STAGING}/") and item.kind == ORPHAN
