"""Claims on the table's lease that newer ones have superseded.

The newest claim is the lease, and the newest few stay with it. The rest are deleted once they are
older than the grace, lowest first. So while a claim exists, no claim above it is missing; that is
how a stalled holder, or a run that is about to claim, can tell that it was overtaken.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

from memwal.format import layout
from memwal.jobs.garbage.model import Action, Item
from memwal.jobs.garbage.survey import Survey
from memwal.model import StoredFile
from memwal.ports import Objects

NAME = "lease_claim"


def read_evidence(objects: Objects, pool: Executor) -> tuple[StoredFile, ...]:
    """Every claim, ascending."""
    found = (f for f in objects.list(layout.LEASE) if layout.parse_lease_claim(f.path) is not None)
    return tuple(sorted(found, key=lambda file: file.path))


def find_items(survey: Survey) -> Iterator[Item]:
    """Every claim but the newest few, ascending."""
    claims: tuple[StoredFile, ...] = tuple(survey.evidence.outside.get(NAME, ()))
    limits = survey.limits
    candidates = claims[: -max(1, limits.numbered_kept_min)]
    ages = (
        place for place, f in enumerate(candidates) if f.modified_at_nanos > survey.cutoff_nanos
    )
    young = next(ages, len(candidates))
    for place, file in enumerate(candidates):
        held = None
        if place >= young:
            held = "younger than the grace, or newer than one that is"
        elif place >= limits.numbered_deletes_max:
            held = f"{limits.numbered_deletes_max} go first: left to the next run"
        yield Item(
            kind=NAME,
            shard_id=None,
            path=file.path,
            bytes=file.size_bytes,
            action=Action.DELETE if held is None else Action.KEEP,
            reason=held or "superseded by newer claims",
            stages=() if held else ((file,),),
            in_order=True,
        )


def may_delete(item: Item) -> bool:
    """Whether it is the file of a lease claim."""
    return layout.parse_lease_claim(item.path) is not None and item.kind == NAME
