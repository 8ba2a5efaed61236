"""What our object stores share: limits, counters, reads of a known size, waits and retries.

When a store keeps us waiting, a request that takes 5 s is told of, and again every 30 s. Requests
that are under way are looked at by one thread, which is there while any is: an attempt that hangs
is told of as well as one that is tried again. Of the requests to one store the oldest speaks. The
lines are warnings of the Python logger `memwal`; a command shows them as its own.
"""

from __future__ import annotations

import logging
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception

from memwal.clock import SystemClock
from memwal.config import mask_address
from memwal.config.storage_options import WAIT_OPTION
from memwal.errors import Corruption, Usage
from memwal.ports import (
    OBJECT_BYTES_MAX,
    Clock,
    Objects,
    RequestCounts,
    backoff_seconds,
    check_object_size,
)
from memwal.store.objects.pace import our_rate

FIRST_SECONDS = 5.0
AGAIN_SECONDS = 30.0
_LOOK_SECONDS = 0.5

T = TypeVar("T")
_FIRST_WAIT_SECONDS = 0.1
_READERS_MAX = 16


@dataclass(kw_only=True, slots=True, eq=False)
class Wait:
    """A request under way. `seconds_max` is for how long it is tried, None where Lance decides."""

    store: str
    request: str
    began: float
    seconds_max: float | None
    attempts: int = 1
    fault: str = ""
    context: Context = field(default_factory=copy_context)

    def describe(self, now: float) -> str:
        """The warning's text."""
        passed = f" for {now - self.began:.0f} s" if now > self.began + 1 else ""
        parts = [self.request]
        if self.attempts > 1:
            parts.append(f"attempt {self.attempts}")
        if self.seconds_max is not None:
            parts.append(f"given up after {self.seconds_max:.0f} s")
        text = f"waiting for {mask_address(self.store)}{passed}: {', '.join(parts)}"
        return f"{text} ({self.fault})" if self.fault else text


class Waits:
    """The requests under way in this process."""

    def __init__(self, clock: Clock, tell: Callable[[str], object]) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._going: list[Wait] = []
        self._told: dict[str, float] = {}
        self._pause = threading.Event()
        self._watcher = threading.Thread()

    @contextmanager
    def watch(self, store: str, request: str, seconds_max: float | None = None) -> Iterator[Wait]:
        """Warn about the request made inside this context, if it takes long."""
        wait = Wait(
            store=store,
            request=request,
            began=self._clock.monotonic_seconds(),
            seconds_max=seconds_max,
        )
        with self._lock:
            self._going.append(wait)
            if not self._watcher.is_alive():  # nor is it in a fork
                self._watcher = threading.Thread(target=self._run, daemon=True, name="memwal-waits")
                self._watcher.start()
        try:
            yield wait
        finally:
            with self._lock:
                self._going.remove(wait)

    def look(self) -> bool:
        """Tell what there is to tell; whether any request is under way."""
        with self._lock:
            going = tuple(self._going)
            if not going:
                self._watcher = threading.Thread()
        now = self._clock.monotonic_seconds()
        oldest = {wait.store: wait for wait in reversed(going)}
        for wait in oldest.values():
            if now - wait.began >= FIRST_SECONDS:
                self.tell(wait)
        return bool(going)

    def tell(self, wait: Wait) -> None:
        """Tell of a request now, unless its store was told of lately."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            lately = {s: at for s, at in self._told.items() if now - at < AGAIN_SECONDS}
            self._told = {wait.store: now, **lately}
        if wait.store not in lately:
            wait.context.copy().run(self._tell, wait.describe(now))

    def _run(self) -> None:
        while self.look():
            self._pause.wait(_LOOK_SECONDS)


WAITS = Waits(SystemClock(), logging.getLogger("memwal").warning)


def retry(
    call: Callable[[], T],
    passes: Callable[[BaseException], bool],
    clock: Clock,
    *,
    seconds_max: float,
    wait_seconds_max: float,
    attempts_max: int,
) -> T:
    """Call again while what it raises `passes`, and the deadline and the attempts allow it.

    Raises what the last attempt raised. No wait begins that would end after `seconds_max`.
    """
    started = clock.monotonic_seconds()

    def is_last(state: RetryCallState) -> bool:
        passed = clock.monotonic_seconds() - started
        return state.attempt_number >= attempts_max or passed + state.upcoming_sleep > seconds_max

    def choose_wait(state: RetryCallState) -> float:
        return backoff_seconds(
            clock, state.attempt_number, wait_seconds_max, first_seconds=_FIRST_WAIT_SECONDS
        )

    retrying = Retrying(
        retry=retry_if_exception(passes),
        wait=choose_wait,
        stop=is_last,
        sleep=clock.sleep,
        reraise=True,
    )
    return retrying(call)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreLimits:
    """Bounds on one store. Retries, waits and deletes are a remote store's; local files need none.

    `retry_seconds_max` is the total for one operation; an attempt that is under way when it
    passes may add its own connect and read timeouts.
    """

    retry_attempts_max: int = 10
    retry_seconds_max: float = 60.0
    retry_wait_seconds_max: float = 8.0
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 30.0
    requests_per_second_max: float | None = None
    deletes_in_flight_max: int = 4
    delete_batch_objects_max: int = 1000

    def at_most(self, seconds_max: float) -> StoreLimits:
        """The limits with `seconds_max` in total, and enough attempts that only it ends retries."""
        attempts = max(self.retry_attempts_max, round(seconds_max))
        return replace(self, retry_seconds_max=seconds_max, retry_attempts_max=attempts)


def limit_requests(storage_options: Mapping[str, str], limits: StoreLimits) -> StoreLimits:
    """The limits with the rate and the total wait that the storage options give. Raises Usage.

    They are storage options, so that they reach Lance, executors and the processes of a watch.
    """
    rate = our_rate(storage_options)
    limits = limits if rate is None else replace(limits, requests_per_second_max=rate)
    for name, text in storage_options.items():
        if name.lower() == WAIT_OPTION:
            if not re.fullmatch("[1-9][0-9]{0,4}", text):
                raise Usage(f"the storage option {name}: expected seconds, from 1 on")
            return limits.at_most(int(text))
    return limits


class CountedObjects:
    """An address, and counters that any thread may raise."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._counts = RequestCounts()
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._uri!r})"

    @property
    def uri(self) -> str:
        """The root's address, without credentials."""
        return self._uri

    @property
    def counts(self) -> RequestCounts:
        """Requests so far, and bytes."""
        return self._counts

    def _count(self, counter: str, by: int = 1) -> None:
        with self._lock:
            setattr(self._counts, counter, getattr(self._counts, counter) + by)

    def _address(self, path: str) -> str:
        return f"{self._uri}/{path}"


def count_readers(objects: Objects) -> int:
    """How many threads read a table's small files; one for local ones, whose reads hardly wait.

    There, the threads' turns at the interpreter cost more than the reads.
    """
    return _READERS_MAX if objects.page_objects else 1


def nanos_of(moment: datetime) -> int:
    """A time that a store told, in nanoseconds."""
    # A float holds milliseconds since 1970 exactly, nanoseconds not.
    return round(moment.timestamp() * 1_000) * 1_000_000


class SizedObjects(CountedObjects):
    """A store that knows an object's size before it reads any of it."""

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """The whole object. Raises Missing; Corruption when it is larger."""

        def choose_all(size_bytes: int) -> tuple[int, int]:
            check_object_size(self._address(path), size_bytes, size_bytes_max)
            return 0, size_bytes

        return self._read(path, choose_all)[0]

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises Missing; Corruption when the object is shorter."""
        check_range(start, end)

        def choose_range(size_bytes: int) -> tuple[int, int]:
            if size_bytes < end:
                raise Corruption(
                    "MW-O02",
                    f"{self._address(path)} has {size_bytes} bytes; "
                    f"bytes [{start}, {end}) were expected",
                )
            return start, end

        return self._read(path, choose_range)[0]

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """At most the last `size_bytes_max` bytes, and the object's size. Raises Missing."""
        check_tail_length(size_bytes_max)
        return self._read(path, lambda size: (max(0, size - size_bytes_max), size))

    @abstractmethod
    def _read(self, path: str, choose: Callable[[int], tuple[int, int]]) -> tuple[bytes, int]:
        """The bytes between the offsets that `choose` gives for the object's size; and that size.

        Raises Missing, and what `choose` raises before anything is read.
        """


def check_range(start: int, end: int) -> None:
    """Raise ValueError for offsets that are no range."""
    if not 0 <= start <= end:
        raise ValueError(f"not a range: [{start}, {end})")


def check_tail_length(size_bytes_max: int) -> None:
    """Raise ValueError for a tail that can have no bytes."""
    if size_bytes_max < 1:
        raise ValueError(f"not a tail length: {size_bytes_max}")
