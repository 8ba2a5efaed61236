"""Keeps a merge that runs without the lease away from a snapshot refresh.

A refresh may lower merge progress until it has repaired it, a moment later. A merger that takes its
view in between folds generations again that the base already has. If it merges them in parts, or
deletes ahead of its mark, and the repair comes before it is done, then progress says more than the
base has (invariant 1): newer rows are lost. A refresh holds the lease from before its first commit
until after its last repair, and makes no repair once its claim has lapsed. So it is enough that no
refresh held the lease between a view and the commits that build on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memwal.errors import LeaseHeld, LostRace
from memwal.jobs.merge.ports import Leases
from memwal.ports import LOWERING_JOB


@dataclass(kw_only=True, slots=True)
class RefreshWatch:
    """Checks the lease before each view and each writing step of a merge.

    `lease_token` is that of the merge's own lease, if it holds one: no refresh runs meanwhile.
    """

    leases: Leases
    lease_token: int | None = None
    _seen_token: int = field(default=0, init=False)

    def before_view(self) -> None:
        """Remember the newest claim. Raises LeaseHeld while a refresh holds the lease."""
        if self.lease_token is None:
            self._seen_token = self._newest_token()

    def before_commit(self) -> None:
        """Raise LostRace when the lease was claimed since the view, LeaseHeld as `before_view`.

        For a merge that holds the lease, raise LeaseHeld when that was lost.
        """
        if self.lease_token is not None:
            self.leases.check(self.lease_token)
            return
        token = self._newest_token()
        if token != self._seen_token:
            raise LostRace(
                f"lease token {token} was claimed since the view was taken; a refresh may have "
                "lowered progress in it"
            )

    def _newest_token(self) -> int:
        claim = self.leases.current()
        if claim is None:
            return 0
        if claim.job == LOWERING_JOB and self.leases.is_live(claim):
            raise LeaseHeld(
                f"a snapshot refresh by {claim.holder} holds the lease (token {claim.token}) and "
                "may lower merge progress for a moment; run again when it has ended, or "
                "`memwal lease break TABLE --reason ...` if the refresh is dead"
            )
        return claim.token
