"""Records what a table at rest has merged: first the name, in a commit; the record last."""

from __future__ import annotations

from memwal.errors import LostRace
from memwal.jobs.quiesce.ports import Proofs
from memwal.model import TableView
from memwal.ports import Clock
from memwal.rows.settled import SettledRecord, find_settled


def keep_proof(view: TableView, proofs: Proofs, clock: Clock) -> None:
    """Record it, unless that is done. The view has shown that nothing is in the way.

    Lance lets the commit land on top of a restore that came in between: a version that has not the
    rows would name the record then. So that is looked at before there is a record.
    Raises LostRace when the table has moved on, and what the ports raise.
    """
    settled = find_settled(view.shards)
    known = proofs.find(view)
    if not settled or any(record.shards == settled for record in known):
        return
    record_id = clock.new_id()
    proofs.name(view, record_id, next(iter(known), None))
    if not proofs.follows(view, record_id):
        raise LostRace(f"{view.uri}: somebody else committed to the table meanwhile")
    proofs.put(SettledRecord(record_id=record_id, version=view.version, shards=settled))
