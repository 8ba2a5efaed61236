"""A document of memwal's own that can't be read: a lease claim, a run's record, a mark, a cache.
A checkpoint whose record or tag is not there, or not readable, is told of as well.

Evidence: the document. Gate: no newer memwal wrote it. A lease claim has to be ten minutes old: its
holder writes it anew every minute, so that one that is alive would have. Other documents than those
that are named here are left alone: something is believed, kept or resumed by them.

Cure: it is moved into quarantine. A lease claim is replaced by one of its number that is released,
so that no number is given twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.format import layout
from memwal.jobs.repair.model import Damage, Effect, Evidence, ReleaseClaim, Replace, TakeSnapshot
from memwal.jobs.verify.plan import FileFault
from memwal.text import format_age

NAME = "record"
CLAIM_SECONDS_MIN = 600
SNAPSHOT_RECORD = f"{layout.MAINTENANCE}/snapshot.json"
_OF_CHECKPOINTS = (f"{layout.CHECKPOINTS}/", "_refs/tags/")
_PUT_ASIDE = (
    f"{layout.LEASE}/",
    f"{layout.RUNS}/",
    f"{layout.RESCUES}/",
    f"{layout.SETTLED}/",
    f"{layout.MAINTENANCE}/cache/",
    SNAPSHOT_RECORD,
)


def find(evidence: Evidence) -> Iterator[Damage]:
    """What is wrong with records, those of checkpoints included."""
    for fault in evidence.record_faults:
        why, effects = _judge(evidence, fault)
        yield Damage(
            kind=NAME,
            path=fault.path,
            finding=fault.problem.partition("; ")[0],
            evidence=why,
            effects=effects,
            checks=("records", "checkpoints"),
        )


def _judge(evidence: Evidence, fault: FileFault) -> tuple[str, tuple[Effect, ...]]:
    digest = evidence.digests.get(fault.path)
    if fault.is_newer:
        return "a newer memwal may have written it: use that", ()
    if fault.path.startswith(_OF_CHECKPOINTS):
        return "drop the checkpoint, or move its record away; what it kept is kept no longer", ()
    if not fault.path.startswith(_PUT_ASIDE) or digest is None:
        return "something is kept or resumed by it, and nothing else says what it said", ()
    why = "nothing is proven by it: it is put aside"
    token = layout.parse_lease_claim(fault.path)
    if token is not None:
        age = (evidence.now_nanos - evidence.times.get(fault.path, 0)) / 1e9
        if age < CLAIM_SECONDS_MIN:
            held = f"it was written {format_age(age)} ago: whoever holds the lease may be at work"
            return f"{held}; run again when it is ten minutes old", ()
        return why, (ReleaseClaim(token=token, digest=digest),)
    aside = Replace(path=fault.path, data=None, digest=digest)
    return why, (aside, TakeSnapshot()) if fault.path == SNAPSHOT_RECORD else (aside,)
