"""Holds a table's lease while jobs run on it: a thread renews it, and it is released at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from memwal.errors import LeaseHeld, MemWalError
from memwal.model import LeaseClaim
from memwal.report import LeaseReport, read_airflow_task
from memwal.store.records.lease import StoredLeases
from memwal.store.records.process import is_gone
from memwal.text import iso_time


class HeldLease:
    """A claim with its heartbeat. Use as a context manager, or call `release`."""

    def __init__(
        self, leases: StoredLeases, job: str, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """Claim the table. Raises LeaseHeld. `say` gets a line whenever a renewal fails."""
        self._leases = leases
        self._say = say
        self._claim: LeaseClaim = leases.acquire(job)
        self._lost: LeaseHeld | None = None
        self._lapsed = False
        self._start_heart()

    def pass_on(self, leases: StoredLeases, job: str, *, own_claim: bool) -> None:
        """Let the next job go on under this lease, through its own stores. Raises LeaseHeld.

        With `own_claim`, the job gets a new claim that replaces the one that is held.
        """
        self._stop_heart()
        try:
            self._leases = leases
            if own_claim:
                self._claim = leases.acquire(job, before=self._claim)
                self._lapsed = False
            elif self._claim.job != job:
                self._claim = leases.renew(replace(self._claim, job=job))
        finally:
            self._start_heart()

    def _start_heart(self) -> None:
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True, name="memwal-lease")
        self._heart.start()

    def _stop_heart(self) -> None:
        self._over.set()
        self._heart.join()

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._claim.token

    @property
    def is_unfenced(self) -> bool:
        """Whether a refresh that was cut off before may still commit."""
        return self._claim.unfenced

    def note_fenced(self) -> None:
        """Note that it can't any more; stored when the claim is renewed or released."""
        self._claim = replace(self._claim, unfenced=False)

    def check(self) -> None:
        """Raise LeaseHeld when the claim was superseded."""
        if self._lost is not None:
            raise self._lost
        self._leases.check(self.token)

    def check_unbroken(self) -> None:
        """Raise LeaseHeld when the claim was superseded, or has ever lapsed since it was made.

        A claim that lapsed and was renewed is ours again, but others may have worked in between.
        """
        self._notice_lapse()
        if self._lapsed:
            raise LeaseHeld(f"lease token {self.token} lapsed for a while: it was renewed too late")
        self.check()

    def _notice_lapse(self) -> None:
        self._lapsed = self._lapsed or not self._leases.is_live(self._claim)

    def release(self) -> None:
        """Stop the heartbeat and release the lease. Raises MemWalError when that fails."""
        self._stop_heart()
        if self._lost is None:
            self._leases.release(self._claim)

    def _beat(self) -> None:
        # Renew at a third of the time to live: two renewals may fail before anyone may take over.
        while not self._over.wait(self._leases.ttl_seconds / 3):
            self._notice_lapse()
            try:
                self._claim = self._leases.renew(self._claim)
            except LeaseHeld as lost:
                self._lost = lost
                return
            except MemWalError as error:
                # The store may answer again before the claim expires.
                self._say(f"the lease could not be renewed: {error}")
            except BaseException as error:  # a bug or a panic must not let the lease lapse
                self._say(f"the lease could not be renewed: {type(error).__name__}: {error}")

    def __enter__(self) -> HeldLease:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class ChainLeases:
    """The leases of jobs that run one after the other on the same tables, one lease a table.

    A lease is taken for the first job that has work, and kept until it is given back or the chain
    ends. Use as a context manager. Tables may be worked on concurrently, each in one thread.
    """

    def __init__(
        self, name: str | None = None, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        """Claims carry `name`, or each job's own name without it.

        `warn` is called about a lease that can't be given back.
        """
        self._name = name
        self._warn = warn
        self._held: dict[str, HeldLease] = {}

    def take(
        self,
        uri: str,
        leases: StoredLeases,
        job: str,
        say: Callable[[str], None],
        *,
        own_claim: bool = False,
    ) -> HeldLease:
        """The table's lease, for a job that has work. Raises LeaseHeld.

        A job with `own_claim` gets a claim of its own, so that runs without a lease can tell it by
        the claim's token and job name; other jobs share one claim under the chain's name.
        """
        name = job if own_claim else self._name or job
        held = self._held.get(uri)
        if held is None:
            held = self._held[uri] = HeldLease(leases, name, say)
        else:
            held.pass_on(leases, name, own_claim=own_claim)
        return held

    def holds(self, uri: str) -> bool:
        """Whether an earlier job of the chain took the table's lease, and it was not given back."""
        return uri in self._held

    def give_back(self, uri: str) -> None:
        """Release the table's lease, if one is held; a failure is a warning and ends no job."""
        held = self._held.pop(uri, None)
        if held is not None:
            try:
                held.release()
            except MemWalError as error:
                self._warn(str(error))

    def __enter__(self) -> ChainLeases:
        return self

    def __exit__(self, *error: object) -> None:
        for uri in list(self._held):
            self.give_back(uri)


def describe_lease(claim: LeaseClaim | None, now_nanos: int) -> LeaseReport | None:
    """The report of a claim; its `state` is held, released, expired or broken."""
    if claim is None:
        return None
    if claim.reason is not None:
        state = "broken"
    elif claim.released:
        state = "released"
    else:
        state = "held" if claim.expires_at_nanos > now_nanos else "expired"
    return LeaseReport(
        state=state,
        ended=state == "held" and is_gone(claim.holder),
        token=claim.token,
        holder=claim.holder,
        job=claim.job,
        run_id=claim.run_id,
        airflow=read_airflow_task(claim.airflow),
        acquired_at=iso_time(claim.acquired_at_nanos),
        expires_at=iso_time(claim.expires_at_nanos),
        reason=claim.reason,
    )
