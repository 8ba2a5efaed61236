"""Checkpoints: expired ones are deleted, tag first; the others hold their cuts.

A record without its tag is found again by the next run, whereas nothing would tell whose tag a tag
without a record is. What the checkpoint held is garbage for the next run.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.format import layout
from memwal.jobs.garbage.model import Item, plan_delete
from memwal.jobs.garbage.survey import Survey
from memwal.model import Checkpoint, StoredFile
from memwal.text import count_of, iso_time

NAME = "checkpoint"


def find_items(survey: Survey) -> Iterator[Item]:
    """Every checkpoint."""
    for found in survey.evidence.checkpoints:
        path = layout.checkpoint_path(found.key)
        files = (layout.checkpoint_tag_path(found.key), path)
        yield plan_delete(
            NAME,
            path,
            *([StoredFile(path=file, size_bytes=0, modified_at_nanos=0)] for file in files),
            why=_describe_end(found, survey),
            held=describe_hold(found) if survey.is_kept(found) else None,
        )


def may_delete(item: Item) -> bool:
    """Whether it is the record of a checkpoint; the tag that is named after it goes with it."""
    return item.kind == NAME and layout.parse_checkpoint_path(item.path) is not None


def _describe_end(found: Checkpoint, survey: Survey) -> str:
    if found.is_expired(survey.now_nanos):
        return f"expired {iso_time(found.expires_at_nanos)}; it was kept for {found.holder}"
    return "it was never finished: the run that made it was killed"


def describe_hold(found: Checkpoint) -> str:
    """Say until when the checkpoint is kept, for whom, and what it holds."""
    until = iso_time(found.expires_at_nanos) or "it is dropped"
    kept = f"version {found.version} and {count_of(found.generations, 'generation')}"
    return f"kept until {until} for {found.holder}, with {kept}"
