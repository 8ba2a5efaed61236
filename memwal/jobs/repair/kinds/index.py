"""An index of the base that can't be opened, has lost files, or claims what it does not cover.

Evidence: the rows, and the parameters that the table's manifest has of the index. Gate: none, as
an index holds nothing that the rows do not. Cure: it is built again with these parameters and takes
the place of the former one in the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.jobs.repair.model import Action, BuildIndex, Damage, Evidence
from memwal.jobs.verify.plan import find_false_claims

NAME = "index"


def find(evidence: Evidence) -> Iterator[Damage]:
    """One damage for each index, however much is wrong with it."""
    problems: dict[str, list[str]] = {}
    for fault in evidence.index_faults:
        problems.setdefault(fault.name, []).append(fault.problem)
    for claim in evidence.catch_up:
        if wrong := find_false_claims(evidence.view, claim):
            problems.setdefault(claim.index, []).extend(wrong)
    for name, texts in sorted(problems.items()):
        paths = [fault.path for fault in evidence.index_faults if fault.name == name]
        yield Damage(
            kind=NAME,
            path=paths[0] if paths else f"index {name}",
            action=Action.MEND,
            finding="; ".join(texts),
            evidence="built again from the table's rows, with its parameters; Lance chooses the "
            "number of partitions where the files of a vector index don't tell it",
            effects=(BuildIndex(name=name),),
            checks=("indexes open", "index catch-up claims"),
        )
