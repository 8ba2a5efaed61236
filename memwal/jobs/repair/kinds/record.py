"""A document of memwal's own that can't be read: a lease claim, a run's record, a mark, a cache.

Evidence: the document. Gate: no newer memwal wrote it. A lease claim has to be older than `--idle`:
its holder writes it anew every minute, so that one that is alive would have. Other documents than
those that are named here are left alone: something is believed, kept or resumed by them.

Cure: it is moved into quarantine. A lease claim is replaced by one of its number that is released,
so that no number is given twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memwal.format import layout
from memwal.jobs.repair.model import (
    Action,
    Damage,
    Effect,
    Evidence,
    MoveAway,
    ReleaseClaim,
    TakeSnapshot,
)
from memwal.jobs.verify.plan import FileFault
from memwal.text import format_age

NAME = "record"
SNAPSHOT_RECORD = f"{layout.MAINTENANCE}/snapshot.json"
_PUT_ASIDE = (
    f"{layout.LEASE}/",
    f"{layout.RUNS}/",
    f"{layout.RESCUES}/",
    f"{layout.SETTLED}/",
    f"{layout.MAINTENANCE}/cache/",
    SNAPSHOT_RECORD,
)


def find(evidence: Evidence) -> Iterator[Damage]:
    """What is wrong with records."""
    for fault in evidence.record_faults:
        found = Damage(
            kind=NAME,
            path=fault.path,
            action=Action.LEAVE,
            finding=fault.problem.partition("; ")[0],
            evidence="",
            checks=("records",),
        )
        yield _judge(evidence, fault, found)


def _judge(evidence: Evidence, fault: FileFault, found: Damage) -> Damage:
    digest = evidence.digests.get(fault.path)
    if fault.is_newer or digest is None:
        return replace(found, evidence="a newer memwal may have written it: use that")
    if not fault.path.startswith(_PUT_ASIDE):
        why = "something is kept or resumed by it, and nothing else says what it said"
        return replace(found, evidence=why)
    effects: tuple[Effect, ...] = (MoveAway(path=fault.path, digest=digest),)
    token = layout.parse_lease_claim(fault.path)
    if token is not None:
        idle = (evidence.now_nanos - evidence.times.get(fault.path, 0)) / 1e9
        if idle < evidence.idle_seconds:
            why = f"it was written {format_age(idle)} ago: whoever holds the lease may be at work"
            return replace(found, evidence=f"{why}; wait, or pass --idle 0s if nobody is")
        effects = (ReleaseClaim(token=token, digest=digest),)
    elif fault.path == SNAPSHOT_RECORD:
        effects = (*effects, TakeSnapshot())
    return replace(
        found,
        action=Action.MEND,
        evidence="nothing is proven by it: it is put aside",
        effects=effects,
    )
