"""Files that runs staged under `_maintenance/tmp/` and left there when they were killed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

from memwal.format import layout
from memwal.jobs.garbage.look import Look
from memwal.jobs.garbage.model import ORPHAN, Item, plan_delete
from memwal.model import StoredFile
from memwal.ports import Objects

NAME = "leftover"


def read_evidence(objects: Objects, pool: Executor) -> tuple[StoredFile, ...]:
    """Every staged file."""
    return tuple(objects.list(layout.STAGING))


def find_items(look: Look) -> Iterator[Item]:
    """Every staged file; those older than `leftover_age_seconds` go."""
    cutoff = look.now_nanos - round(look.limits.leftover_age_seconds * 1e9)
    for file in look.evidence.beside.get(NAME, ()):
        young = file.modified_at_nanos > cutoff
        yield plan_delete(
            ORPHAN,
            file.path,
            (file,),
            why="staged by a run that was killed",
            held="may be staged by a run that goes on" if young else None,
        )


def may_delete(item: Item) -> bool:
    """Whether it lies below the staging folder."""
    return item.path.startswith(f"{layout.STAGING}/") and item.kind == ORPHAN
