"""The table's lease: numbered claims under `_maintenance/lease/`, made put-if-absent.

The highest number is the lease; the number is the fencing token. A heartbeat rewrites the
holder's own claim with a later expiry, a release rewrites it as released. Garbage deletes
superseded claims, lowest first: only a claim whose predecessor is there has lost none above it. Two
layers keep a paused holder from doing harm (Zeppelin, Two-Layer Defense): it looks for a newer
claim before each commit, and the commit itself is a compare-and-swap. Expiry is judged by this
host's clock against the holder's, so skew costs a wait or an early take-over, never data. How long
a claim lasts is its holder's setting and stands in the claim: nobody judges another's by their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from itertools import islice

from memwal.errors import (
    AlreadyExists,
    Corruption,
    LeaseHeld,
    MemWalError,
    Missing,
    StoreUnavailable,
)
from memwal.format import layout
from memwal.model import LeaseClaim, StoredFile
from memwal.ports import DOCUMENT_BYTES_MAX, Clock, Objects
from memwal.store.objects.base import retry
from memwal.store.records.process import is_gone, this_holder, this_task
from memwal.text import iso_time

TTL_SECONDS = 300.0
RELEASE_SECONDS_MAX = 5.0
_RELEASE_WAIT_SECONDS_MAX = 0.5
_RELEASE_ATTEMPTS_MAX = 50
_HINT = f"{layout.LEASE}/hint.json"
_PROBES_MAX = 64
# Hosts that keep time differ by less.
_CLOCKS_AGREE_NANOS = 5 * 10**9
_NUMBER_MAX = 2**63 - 1


class StoredLeases:
    """The lease of one table. It saves work; commits keep the data right."""

    def __init__(
        self,
        objects: Objects,
        clock: Clock,
        *,
        ttl_seconds: float = TTL_SECONDS,
        holder: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._ttl_nanos = int(ttl_seconds * 10**9)
        self._holder = holder
        self._run_id = run_id
        self._hint: Mapping[str, object] = {}

    @property
    def ttl_seconds(self) -> float:
        """How long a claim lasts without a heartbeat."""
        return self._ttl_nanos / 10**9

    def current(self) -> LeaseClaim | None:
        """The newest claim, whatever its state; None when there never was one.

        Raises Corruption for one that can't be read.
        """
        token = self._read_hint()
        found = self.read(token) if token else None
        if found is None:
            return self._find_by_listing()
        for _ in range(_PROBES_MAX):
            following = self.read(found.token + 1)
            if following is None:
                return found if self._leads_up(found.token) else self._find_by_listing()
            found = following
        return self._find_by_listing()

    def glance(self) -> LeaseClaim | None:
        """The same as `current`, in two requests if one page lists all claims; for reports."""
        most = self._objects.page_objects
        if most == 0:
            return self.current()
        infos = list(islice(self._objects.list(layout.LEASE), most))
        if len(infos) == most:
            return self.current()
        tokens = _tokens(infos)
        return self.read(max(tokens)) if tokens else None

    def acquire(self, job: str, *, before: LeaseClaim | None = None) -> LeaseClaim:
        """Claim the table for a job. Raises LeaseHeld (by whom, since when, until when).

        A claim of this host whose process has provably ended is no hindrance. Where `before` is
        given, a claim of ours, the new one takes its place, unless another has done that.
        """
        if before is not None:
            self.check(before.token)
            return self._claim(before, job, unfenced=before.unfenced)
        current = self.current()
        if current is not None and self.is_live(current) and not is_gone(current.holder):
            raise LeaseHeld(self._held_text(current))
        # Once it is released, its holder has ended all commits; a pause may have cut off one.
        return self._claim(current, job, unfenced=current is not None and current.may_lower)

    def renew(self, claim: LeaseClaim) -> LeaseClaim:
        """Push the expiry out. Raises LeaseHeld when the claim was superseded."""
        self.check(claim.token)
        renewed = replace(claim, expires_at_nanos=self._clock.now_nanos() + claim.length_nanos)
        self._objects.put(layout.lease_claim_path(claim.token), encode_claim(renewed))
        try:
            self.check(claim.token)
        except LeaseHeld:
            self._withdraw(claim.token)
            raise
        return renewed

    def release(self, claim: LeaseClaim) -> None:
        """Mark the claim as released. Retries for some seconds, then raises MemWalError."""
        data = encode_claim(replace(claim, released=True, expires_at_nanos=self._clock.now_nanos()))
        try:
            retry(
                lambda: self._objects.put(layout.lease_claim_path(claim.token), data),
                lambda error: isinstance(error, StoreUnavailable),
                self._clock,
                attempts_max=_RELEASE_ATTEMPTS_MAX,
                seconds_max=RELEASE_SECONDS_MAX,
                wait_seconds_max=_RELEASE_WAIT_SECONDS_MAX,
            )
        except MemWalError as error:
            raise error.say(self._stands_text(claim, error)) from error
        with suppress(MemWalError):
            if self._find_newer(claim.token) is not None:
                self._withdraw(claim.token)

    def check(self, token: int) -> None:
        """Raise LeaseHeld when a newer claim exists; asked before every commit."""
        newer = self._find_newer(token)
        if newer is not None:
            raise LeaseHeld(
                f"{self._objects.uri}: lease token {token} was superseded; "
                + self._held_text(newer)
            )

    def break_(self, reason: str) -> LeaseClaim | None:
        """Supersede the claim that holds the lease, leaving a record of who did it and why.

        None, and no record, when nobody holds it.
        """
        current = self.current()
        if current is None or not self.is_live(current):
            return None
        return self._claim(current, "lease break", reason=reason, unfenced=current.may_lower)

    def is_live(self, claim: LeaseClaim) -> bool:
        """Whether the claim holds the lease now, by this host's clock."""
        return not claim.released and claim.expires_at_nanos > self._clock.now_nanos()

    def make(self, token: int, job: str, *, reason: str | None = None) -> LeaseClaim:
        """A claim as this run would make it; for a reason, one that is released."""
        now = self._clock.now_nanos()
        return LeaseClaim(
            token=token,
            claim_id=self._clock.new_id(),
            holder=self._holder or this_holder(),
            job=job,
            acquired_at_nanos=now,
            expires_at_nanos=now if reason else now + self._ttl_nanos,
            released=reason is not None,
            reason=reason,
            run_id=self._run_id,
            airflow=task.model_dump() if (task := this_task()) else None,
            length_nanos=self._ttl_nanos,
        )

    def _claim(
        self, current: LeaseClaim | None, job: str, *, unfenced: bool, reason: str | None = None
    ) -> LeaseClaim:
        claim = self.make(1 if current is None else current.token + 1, job, reason=reason)
        claim = replace(claim, unfenced=unfenced)
        try:
            self._objects.put_if_absent(layout.lease_claim_path(claim.token), encode_claim(claim))
        except (AlreadyExists, StoreUnavailable) as error:
            # A create whose reply was lost is ours all the same: the id tells.
            winner = self.read(claim.token)
            if winner is None and isinstance(error, StoreUnavailable):
                raise
            if winner is None or winner.claim_id != claim.claim_id:
                raise LeaseHeld(
                    self._held_text(winner) if winner else f"{self._objects.uri}: lost the lease"
                ) from None
        # Whoever held the lease before may have slept, too, and have brought its claim back.
        as_seen = current is not None and self.read(current.token) == current
        newer = None if as_seen else self._find_by_listing()
        if newer is not None and newer.token > claim.token:
            # The number was free because its claim was collected: we slept for long before that.
            self._withdraw(claim.token)
            raise LeaseHeld(self._held_text(newer))
        with suppress(MemWalError):  # readers probe upwards from an old hint
            self._objects.put(_HINT, json.dumps({**self._hint, "token": claim.token}).encode())
        return claim

    def _withdraw(self, token: int) -> None:
        """Delete a claim that was put under a number which had been collected.

        It stays if the next number exists, since it is then part of the chain below it.
        """
        if not self._objects.exists(layout.lease_claim_path(token + 1)):
            self._objects.delete([layout.lease_claim_path(token)])

    def _read_hint(self) -> int | None:
        try:
            hint = json.loads(self._objects.get(_HINT, DOCUMENT_BYTES_MAX))
            token = hint["token"]
        except (Missing, Corruption, ValueError, KeyError, TypeError, RecursionError):
            return None
        self._hint = hint
        return token if _is_number(token) and token > 0 else None

    def _find_newer(self, token: int) -> LeaseClaim | None:
        """A claim above a number, if there is one."""
        newer = self.read(token + 1)
        if newer is None and not self._leads_up(token):
            newer = self._find_by_listing()
        return newer if newer is not None and newer.token > token else None

    def _leads_up(self, token: int) -> bool:
        """Whether the claim before exists, so that none above was collected (lowest go first)."""
        return token > 1 and self._objects.exists(layout.lease_claim_path(token - 1))

    def _find_by_listing(self) -> LeaseClaim | None:
        tokens = _tokens(self._objects.list(layout.LEASE))
        return self.read(max(tokens)) if tokens else None

    def read(self, token: int) -> LeaseClaim | None:
        """One claim; None if there is none. Raises Corruption for one that can't be read."""
        path = layout.lease_claim_path(token)
        try:
            data = self._objects.get(path, DOCUMENT_BYTES_MAX)
        except Missing:
            return None
        claim = _decode(data)
        if claim is None or claim.token != token:
            raise Corruption(
                "MW-L02",
                f"{self._objects.uri}: {path} is not a lease claim that this build can read; "
                "`memwal lease break` can't help here. Was it made by a newer memwal, use that. If "
                "not, look at the file, and move it away once no job runs",
            )
        return claim

    @property
    def how_to_break(self) -> str:
        """The command that does it."""
        return f"`memwal lease break {self._objects.uri} --reason TEXT`"

    def _held_text(self, claim: LeaseClaim) -> str:
        if claim.reason is not None:
            return (
                f"{self._objects.uri}: the lease was broken by {claim.holder} at "
                f"{iso_time(claim.acquired_at_nanos)}: {claim.reason}"
            )
        run = f" (run {claim.run_id})" if claim.run_id else ""
        held = (
            f"{self._objects.uri}: the lease is held by {claim.holder} for {claim.job}{run} since "
            f"{iso_time(claim.acquired_at_nanos)} until {iso_time(claim.expires_at_nanos)} (token "
            f"{claim.token}); wait, or {self.how_to_break} if it is dead"
        )
        skew = self.skew_text(claim)
        return held if skew is None else f"{held}; {skew}"

    def skew_text(self, claim: LeaseClaim) -> str | None:
        """What is wrong with the clocks where a claim lasts for longer than any can, else None."""
        ahead = claim.expires_at_nanos - self._clock.now_nanos() - claim.length_nanos
        if not self.is_live(claim) or ahead <= _CLOCKS_AGREE_NANOS:
            return None
        return (
            f"clock skew: the lease of {claim.holder} ends {ahead / 10**9:.0f} s later than if it "
            f"had been taken just now ({claim.length_nanos / 10**9:.0f} s), so its clock is ahead "
            "of this host's, or this one is behind"
        )

    def _stands_text(self, claim: LeaseClaim, error: MemWalError) -> str:
        return (
            f"{self._objects.uri}: the lease could not be given back ({error.text}), so it stands "
            f"until {iso_time(claim.expires_at_nanos)}: a later run on this host may take it over, "
            f"others wait, or {self.how_to_break}"
        )


def _tokens(infos: Iterable[StoredFile]) -> list[int]:
    found = (layout.parse_lease_claim(info.path) for info in infos)
    return [token for token in found if token is not None]


def encode_claim(claim: LeaseClaim) -> bytes:
    """The bytes of a claim as it is stored."""
    known = {name: value for name, value in asdict(claim).items() if name != _UNKNOWN}
    return json.dumps({**claim.unknown, **known, "format": _FORMAT}, indent=1).encode()


_FORMAT = 1
_UNKNOWN = "unknown"
_KNOWN = frozenset(field.name for field in fields(LeaseClaim)) - {_UNKNOWN}


def _decode(data: bytes) -> LeaseClaim | None:
    """The claim; None for bytes that are none, or of another format (invariant 10)."""
    try:
        document = json.loads(data)
        if document.pop("format", _FORMAT) != _FORMAT:
            return None
        known = {name: value for name, value in document.items() if name in _KNOWN}
        unknown = {name: value for name, value in document.items() if name not in _KNOWN}
        claim = LeaseClaim(**known, unknown=unknown)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    times = (claim.acquired_at_nanos, claim.expires_at_nanos, claim.length_nanos)
    numbers = (claim.token, *times)
    asides = ("" if text is None else text for text in (claim.reason, claim.run_id))
    texts = (claim.claim_id, claim.holder, claim.job, *asides)
    well = (
        all(_is_number(n) for n in numbers)
        and all(isinstance(t, str) for t in texts)
        and isinstance(claim.released, bool)
        and isinstance(claim.unfenced, bool)
    )
    return claim if well else None


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= _NUMBER_MAX
