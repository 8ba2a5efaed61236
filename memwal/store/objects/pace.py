"""How fast requests go to one store: a bound that is asked for, and what the store can take.

All threads of a process that ask a store of the same endpoint and bucket share its pace. A table
has its turn, one request, and then the others that wait have theirs: one that asks with many
threads is no faster for it. When the store refuses a request as one too many, all others slow down
too: to half of what was sent, and then a little faster each second.

Lance has such a pace of its own for reads, for writes and for listings, in every process; nothing
tells it of our requests. So a bound is divided into fixed shares, of which the sum is the bound.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from threading import Lock

from memwal.config.storage_options import RATE_OPTION
from memwal.errors import Usage
from memwal.ports import Clock

_OUR_SHARE = 1 / 2
_LANCE_SHARE = 1 / 6  # of reads, of writes and of listings each
_RATE_MIN = 5.0  # what is no burden to any store
_RECOVERY_SECONDS = 10.0  # until the rate is what it was when the store refused
_FORGIVEN_SECONDS = 60.0
_LATE_SECONDS = 0.1  # so late a thread may wake up and cost the others no turn
_LOOK_SECONDS = 1.0  # those who wait look so often whether the rate has changed


def find_rate(storage_options: Mapping[str, str]) -> float | None:
    """The requests a second that the storage options allow this process, if any. Raises Usage."""
    for name, text in storage_options.items():
        if name.lower() == RATE_OPTION:
            if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text) or not float(text):
                raise Usage(f"the storage option {name}: expected requests a second, above 0")
            return float(text)
    return None


def our_rate(storage_options: Mapping[str, str]) -> float | None:
    """What of it is for our own requests."""
    rate = find_rate(storage_options)
    return None if rate is None else rate * _OUR_SHARE


def split_rate(storage_options: Mapping[str, str], processes: int) -> dict[str, str]:
    """The storage options for each of so many processes that share the bound."""
    rate = find_rate(storage_options)
    others = {k: v for k, v in storage_options.items() if k.lower() != RATE_OPTION}
    return others if rate is None else {**others, RATE_OPTION: f"{rate / processes:.6f}"}


def pace_lance(storage_options: Mapping[str, str]) -> dict[str, str]:
    """The storage options with which Lance keeps to its share of the bound."""
    rate = find_rate(storage_options)
    if rate is None:
        return dict(storage_options)
    share = rate * _LANCE_SHARE
    paces = {"initial": share, "max": share, "min": min(1.0, share)}
    return {
        **storage_options,
        **{f"lance_aimd_{name}_rate": f"{pace:.6f}" for name, pace in paces.items()},
        "lance_aimd_additive_increment": f"{share / _RECOVERY_SECONDS:.6f}",
        "lance_aimd_burst_capacity": "1",
    }


class Pace:
    """The pace of one store. Safe to share between threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._free_at = -math.inf
        self._sent: deque[float] = deque()
        self._slow_rate = math.inf
        self._slowed_at = -math.inf
        # Each request that waits has a round, a later one than the table's request before it.
        self._waiting: list[tuple[int, int]] = []
        self._round = self._asked = 0
        self._last_rounds: dict[str, int] = {}

    def take_turn(
        self, table: str, rate_max: float | None, deadline: float, say: Callable[[str], None]
    ) -> None:
        """Wait until a request may be sent. Raises TimeoutError when that is after the deadline.

        `say` is called with why it waits, each time that it begins to.
        """
        with self._lock:
            if not self._waiting:
                self._last_rounds.clear()
            turn = self._last_rounds[table] = max(
                self._round, self._last_rounds.get(table, self._round - 1) + 1
            )
            self._asked += 1
            ticket = turn, self._asked
            self._waiting.append(ticket)
        try:
            while True:
                with self._lock:
                    now = self._clock.monotonic_seconds()
                    spacing = 1 / min(rate_max or math.inf, self._rate(now))
                    ahead = sum(other < ticket for other in self._waiting)
                    seconds = self._free_at + ahead * spacing - now
                    if not spacing or (not ahead and seconds <= 0):
                        self._round = max(self._round, turn)
                        self._note(now, spacing)
                        return
                    why = self._explain(now, len(self._waiting), 1 / spacing)
                if now >= deadline:
                    raise TimeoutError(why)
                say(why)
                self._clock.sleep(min(max(seconds, 0.001), _LOOK_SECONDS, deadline - now))
        finally:
            with self._lock:
                self._waiting.remove(ticket)

    def slow_down(self) -> None:
        """The store refused a request as one too many.

        Others that were on the way by then say nothing new: it counts once a second.
        """
        with self._lock:
            now = self._clock.monotonic_seconds()
            if now - self._slowed_at >= 1:
                sent = sum(now - at < 1 for at in self._sent)
                self._slow_rate = max(_RATE_MIN, min(self._rate(now), sent) / 2)
                self._slowed_at = now

    def _rate(self, now: float) -> float:
        """Requests a second that the store is believed to take."""
        passed = now - self._slowed_at
        if passed >= _FORGIVEN_SECONDS:
            return math.inf
        return self._slow_rate * (1 + passed / _RECOVERY_SECONDS)

    def _note(self, now: float, spacing: float) -> None:
        self._free_at = max(self._free_at, now - min(spacing, _LATE_SECONDS)) + spacing
        self._sent.append(now)
        while now - self._sent[0] >= 1:
            self._sent.popleft()

    def _explain(self, now: float, waiting: int, rate: float) -> str:
        asked = "it asked to slow down" if self._rate(now) <= rate else RATE_OPTION
        return f"{waiting} wait for their turn, {rate:.3g} a second: {asked}"


_paces: dict[tuple[str, Clock], Pace] = {}
_paces_lock = Lock()


def pace_of(store: str, clock: Clock) -> Pace:
    """The pace that all requests of this process to a store share."""
    key = store, clock
    if key not in _paces:
        with _paces_lock:
            _paces.setdefault(key, Pace(clock))
    return _paces[key]
