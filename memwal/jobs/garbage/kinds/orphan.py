"""Shards of a table whose MemWAL index is gone: deleted whole, with `--adopt-orphans`.

They stay while any retained version has a MemWAL index: restoring that version would bring its
progress back, and a writer that then starts a deleted shard at generation 1 would lose its rows.

Unknown files and folders below a shard are listed, and always kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.format import layout
from memwal.jobs.garbage.model import (
    ORPHAN,
    Item,
    ShardEvidence,
    newest_of,
    plan_delete,
)
from memwal.jobs.garbage.survey import Survey
from memwal.model import StoredFile

NAME = ORPHAN


def find_items(survey: Survey) -> Iterator[Item]:
    """All shards of a table without a MemWAL index, and unknown files below any shard."""
    shut = find_refusal(survey) or survey.unreadable
    for shard_id, found in survey.evidence.shards.items():
        if survey.view is None:
            yield plan_delete(
                NAME,
                layout.shard_folder(shard_id),
                *_split_stages(found),
                why="the table has no MemWAL index at any retained version",
                held=shut or _hold_shard(found, survey.cutoff_nanos),
                shard_id=shard_id,
            )
        for other in found.others:
            yield plan_delete(
                ORPHAN,
                other.path,
                (other,),
                why="",
                held="neither a generation, nor a manifest, nor a WAL entry: left alone",
                shard_id=shard_id,
            )


def may_delete(item: Item) -> bool:
    """Whether it is the folder of a shard."""
    match item.path.split("/"):
        case [layout.MEM_WAL, shard]:
            return layout.is_shard_folder(shard) and item.kind == NAME
    return False


def find_refusal(survey: Survey) -> str | None:
    """Why a table whose MemWAL index is gone keeps all its shards; None when nothing forbids it."""
    if survey.view is not None:
        return None
    if not survey.limits.adopt_orphans:
        return "the table has no MemWAL index any more; --adopt-orphans deletes what it left"
    if survey.unreadable is not None:
        return None
    holding = next((v for v in survey.evidence.versions if v.merged is not None), None)
    if holding is None:
        return None
    return f"{holding.name} is retained and has the MemWAL index; expire it (--retention) first"


def _hold_shard(found: ShardEvidence, cutoff_nanos: int) -> str | None:
    if found.problem is not None:
        return f"the shard can't be read: {found.problem}"
    if not found.files:
        return "nothing in it is known"
    if newest_of(found.files) > cutoff_nanos:
        return "its newest file is younger than the grace: a writer may be at work"
    return None


def _split_stages(found: ShardEvidence) -> list[list[StoredFile]]:
    """The stages of deleting a shard: generations, `_versions/` first, then WAL, then manifests.

    Manifests go last: without them, a writer that comes back would replay what is left of the WAL.
    With them, a deletion that was killed leaves a shard that lists missing generations, which is an
    error instead of old rows.
    """
    first: list[StoredFile] = []
    second: list[StoredFile] = []
    wal: list[StoredFile] = []
    last: list[StoredFile] = []
    below = layout.shard_folder(found.shard_id) + "/"
    for file in found.files:
        top, _, rest = file.path.removeprefix(below).partition("/")
        if top == "manifest":
            last.append(file)
        elif top == "wal":
            wal.append(file)
        elif rest.startswith(f"{layout.VERSIONS}/"):
            first.append(file)
        else:
            second.append(file)
    return [first, second, wal, last]
