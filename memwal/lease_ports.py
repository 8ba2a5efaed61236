"""The port of a table's lease."""

from __future__ import annotations

from typing import Protocol

from memwal.model import LeaseClaim


class Leases(Protocol):
    """The lease of one table. It saves work; commits keep the data right."""

    def current(self) -> LeaseClaim | None:
        """The newest claim, whatever its state; None when there never was one."""
        ...

    def acquire(self, job: str) -> LeaseClaim:
        """Claim the table for a job. Raises LeaseHeld (by whom, since when, until when).

        A claim of this host whose process has provably ended is no hindrance.
        """
        ...

    def renew(self, claim: LeaseClaim) -> LeaseClaim:
        """Push the expiry out. Raises LeaseHeld when the claim was superseded."""
        ...

    def release(self, claim: LeaseClaim) -> None:
        """Mark the claim as over. Tried for some seconds; raises MemWalError when it stands."""
        ...

    def is_live(self, claim: LeaseClaim) -> bool:
        """Whether the claim holds the lease now, by this host's clock."""
        ...

    def check(self, token: int) -> None:
        """Raise LeaseHeld when a newer claim exists; asked before every commit."""
        ...

    def break_(self, reason: str) -> LeaseClaim | None:
        """Supersede the claim that holds the lease, leaving a record of who did it and why.

        None, and no record, when nobody holds it.
        """
        ...
