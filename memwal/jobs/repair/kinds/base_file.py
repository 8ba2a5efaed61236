"""A file of the base table that is gone, or not as the table's manifest or a backup has it.

Evidence: a backup, if one is given: nothing else has the rows of a data file. Only a comparison
with a backup finds one that is damaged at its full length.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.format import layout
from memwal.jobs.repair.model import Action, Damage, Evidence

NAME = "base_file"


def find(evidence: Evidence) -> Iterator[Damage]:
    """What is wrong with the data files of the viewed version."""
    for fault in evidence.base_faults:
        if fault.path.startswith(f"{layout.MEM_WAL}/"):
            continue  # a generation that a checkpoint needs, which is of another kind
        yield make(fault.path, fault.problem)


def make(path: str, problem: str) -> Damage:
    """The damage of a file."""
    return Damage(
        kind=NAME,
        path=path,
        action=Action.LEAVE,
        finding=problem,
        evidence="only a backup can have its rows (--from)",
        lost=(f"{path} {problem}: reads of the table fail",),
        checks=("base table's files",),
        objects=(path,),
    )
