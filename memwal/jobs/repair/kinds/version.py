"""A version of the base table whose manifest can't be read, or is another version's.

Evidence: the versions after it. Gate: it is not the newest, which only a backup has. Cure: it is
moved into quarantine, as garbage proves nothing while it is there. It could not be read as it was.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.jobs.repair.model import Action, Damage, Evidence, MoveAway

NAME = "version"
_CHECKS = ("merge progress and catch-up", "newest version")


def find(evidence: Evidence) -> Iterator[Damage]:
    """The versions of main that can't be read."""
    for fault in evidence.version_faults:
        version, digest = int(fault.name), evidence.digests.get(fault.path)
        if version < evidence.view.version and digest is not None:
            names = [c.name for c in evidence.checkpoints if c.version == version]
            yield Damage(
                kind=NAME,
                path=fault.path,
                action=Action.SALVAGE,
                finding=fault.problem,
                evidence=f"version {evidence.view.version} is whole; this one is put aside",
                lost=(
                    f"version {version} can't be read any more"
                    + "".join(f", nor checkpoint {name!r}" for name in names),
                ),
                effects=(MoveAway(path=fault.path, digest=digest),),
                checks=_CHECKS,
            )
        else:
            yield Damage(
                kind=NAME,
                path=fault.path,
                action=Action.LEAVE,
                finding=fault.problem,
                evidence="it is the newest version, which only a backup can have (--from)",
                lost=(f"what was committed as version {version}",),
                checks=_CHECKS,
                objects=(fault.path,),
            )
