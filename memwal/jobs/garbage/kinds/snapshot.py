"""External shard snapshots whose index entry is gone, mostly because of a merge."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from uuid import UUID

from memwal.errors import Missing
from memwal.jobs.garbage.model import ORPHAN, Item, plan_delete
from memwal.jobs.garbage.survey import Survey
from memwal.model import StoredFile
from memwal.ports import Objects

NAME = "snapshot"

_INDICES = "_indices"
_FILE = "index.lance"
_TAIL_BYTES = 64 * 1024
# Column names of the spec's shard snapshot, as they stand in a Lance file's schema.
_MARKS = (b"shard_id", b"flushed_generations", b"replay_after_wal_entry_position")


def read_evidence(objects: Objects, pool: Executor) -> tuple[StoredFile, ...]:
    """The files of index folders that hold a shard snapshot and nothing else."""
    folders: dict[str, list[StoredFile]] = {}
    for info in objects.list(_INDICES):
        folders.setdefault(info.path.split("/")[1], []).append(info)
    lone = [
        files[0]
        for name, files in sorted(folders.items())
        if len(files) == 1 and _is_uuid(name) and files[0].path == f"{_INDICES}/{name}/{_FILE}"
    ]

    def is_snapshot(found: StoredFile) -> bool:
        """Tell by the column names: another index could keep a single file of that name, too."""
        try:
            tail, _ = objects.get_tail(found.path, _TAIL_BYTES)
        except Missing:
            return False
        return all(mark in tail for mark in _MARKS)

    known = pool.map(is_snapshot, lone)
    return tuple(found for found, ours in zip(lone, known, strict=True) if ours)


def find_items(survey: Survey) -> Iterator[Item]:
    """Every snapshot; those go whose index entry no retained version has."""
    for found in survey.evidence.outside.get(NAME, ()):
        yield plan_delete(
            ORPHAN,
            found.path,
            (found,),
            why="a shard snapshot whose index entry no retained version has",
            held=_hold(survey, found),
        )


def may_delete(item: Item) -> bool:
    """Whether it is the `index.lance` file of an index folder."""
    match item.path.split("/"):
        case [folder, uuid, name]:
            return (folder, name) == (_INDICES, _FILE) and _is_uuid(uuid)
    return False


def _hold(survey: Survey, found: StoredFile) -> str | None:
    if survey.unreadable is not None:
        return survey.unreadable
    for version in survey.evidence.versions:
        if found.path.split("/")[1] in version.index_uuids:
            return f"{version.name} names it"
    return "younger than the grace" if found.modified_at_nanos > survey.cutoff_nanos else None


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
