"""One seeded scheduler for actors that run the real code, one step at a time.

Each actor is a thread, but only one of them ever runs: at every call of a port it throws the
scheduler's dice, which say who goes on, how much time passes, and what goes wrong, and hands the
baton to that one. The same seed gives the same run, step by step.
"""

from __future__ import annotations

import random
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeVar

from memwal.errors import StoreUnavailable

T = TypeVar("T")

START_NANOS = 1_750_000_000_000_000_000


def _baton() -> threading.Lock:
    """A lock that is taken: whoever takes it again waits until somebody hands it over."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Violation(AssertionError):
    """A promise was broken; the text says which."""


class Crashed(BaseException):
    """This actor was killed: nothing that it does from here on has any effect."""


@dataclass(frozen=True, kw_only=True)
class FaultRates:
    """How often each kind of fault strikes a call, as a probability."""

    error_before: float = 0.0
    error_after: float = 0.0
    delay: float = 0.0
    crash_before: float = 0.0
    crash_after: float = 0.0
    stale_listing: float = 0.0
    clock_jump: float = 0.0

    def names(self) -> list[str]:
        """The kinds that are on."""
        return [f.name for f in fields(self) if getattr(self, f.name)]


class Actor:
    """A thread that runs `body(actor)` and pauses at every step."""

    def __init__(self, scheduler: Scheduler, name: str, body: Callable[[Actor], None]) -> None:
        self.scheduler = scheduler
        self.name = name
        self.done = False
        self.dead = False
        self.error: BaseException | None = None
        self.trace = ""
        self.wake_seconds = 0.0
        self.skew_seconds = 0.0
        self._body = body
        self.go = _baton()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self.dead:
                self._body(self)
        except Crashed:
            pass
        except BaseException as error:
            self.error, self.trace = error, traceback.format_exc()
        self.done = True
        self.scheduler.pass_on(self)

    def step(self, what: str, effect: Callable[[], T]) -> T:
        """Pause, then let `effect` happen, unless something goes wrong."""
        self.pause()
        fault = self.scheduler.fault(self, what)
        if fault == "crash_before":
            self._die()
        if fault == "error_before":
            raise StoreUnavailable(f"{what}: injected, before")
        result = effect()
        if fault == "crash_after":
            self._die()
        if fault == "error_after":
            raise StoreUnavailable(f"{what}: injected, after")
        return result

    def pause(self) -> None:
        """Hand the baton back and wait for it. A dead actor goes no further."""
        if not self.dead and self.scheduler.pass_on(self):
            self.go.acquire()
        if self.dead:
            raise Crashed

    def sleep(self, seconds: float) -> None:
        """Go on after some time has passed."""
        self.wake_seconds = self.scheduler.now_seconds + seconds
        self.pause()

    def _die(self) -> None:
        self.dead = True
        raise Crashed


@dataclass(kw_only=True)
class ActorClock:
    """The Clock port of one actor: everybody's time, plus the skew of its host."""

    actor: Actor

    def now_nanos(self) -> int:
        """Wall clock of this actor's host."""
        scheduler = self.actor.scheduler
        return scheduler.now_nanos() + round(self.actor.skew_seconds * 1e9)

    def monotonic_seconds(self) -> float:
        """Time that no jump changes."""
        return self.actor.scheduler.now_seconds

    def sleep(self, seconds: float) -> None:
        """Let the others go on."""
        self.actor.sleep(seconds)

    def random(self) -> float:
        """The scheduler's dice."""
        return self.actor.scheduler.dice.random()

    def new_id(self) -> str:
        """A UUID from the scheduler's dice."""
        return str(uuid.UUID(int=self.actor.scheduler.dice.getrandbits(128), version=4))


@dataclass(kw_only=True)
class Scheduler:
    """Runs actors, a step at a time; `audit` is called after each."""

    seed: int
    rates: FaultRates = FaultRates()
    audit: Callable[[], None] = lambda: None
    faults_on: bool = True
    pace: float = 1.0
    """How many times half a second passes with a step, on average."""
    now_seconds: float = 0.0
    steps: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    trace_max: int = 4000

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.back = _baton()
        self.actors: list[Actor] = []
        self.kinds = [(kind, getattr(self.rates, kind)) for kind in self.rates.names()]
        self._steps_max = 0
        self._failure: BaseException | None = None
        self._stopping = False
        self._is_stale = False

    def now_nanos(self) -> int:
        """True time, which the store stamps objects with."""
        return START_NANOS + round(self.now_seconds * 1e9)

    def spawn(self, name: str, body: Callable[[Actor], None]) -> Actor:
        """Add an actor; it takes its first step when it is chosen."""
        actor = Actor(self, name, body)
        self.actors.append(actor)
        return actor

    def note(self, text: str) -> None:
        """A line of the trace."""
        if len(self.trace) < self.trace_max:
            self.trace.append(f"{self.steps:5} {self.now_seconds:9.2f}s {text}")

    def run(self, steps_max: int) -> None:
        """Let actors take steps. Raises what the audit raises; the actors are stopped then."""
        self._steps_max, self._failure = steps_max, None
        first = self._choose() if self.steps < steps_max else None
        if first is None:
            return
        first.go.release()
        self.back.acquire()
        if self._failure is not None:
            self.stop()
            raise self._failure

    def pass_on(self, actor: Actor) -> bool:
        """After a step of `actor`, in its thread: audit, and hand the baton to who is next.

        Returns whether it is another's turn.
        """
        if self._stopping:
            self.back.release()
            return True
        try:
            self._finish_step(actor)
            following = self._choose() if self.steps < self._steps_max else None
        except BaseException as failure:
            self._failure, following = failure, None
        if following is actor:
            return False
        (self.back if following is None else following.go).release()
        return True

    def _finish_step(self, actor: Actor) -> None:
        self.steps += 1
        if actor.error is not None:
            error, actor.error = actor.error, None
            raise AssertionError(f"{actor.name} ended in an error:\n{actor.trace}") from error
        self.audit()

    def _choose(self) -> Actor | None:
        self.actors = [a for a in self.actors if not a.done]
        if not self.actors:
            return None
        self.now_seconds += self.dice.random() ** 3 * 2.0 * self.pace
        ready = [a for a in self.actors if a.wake_seconds <= self.now_seconds]
        if not ready:
            self.now_seconds = min(a.wake_seconds for a in self.actors)
            ready = [a for a in self.actors if a.wake_seconds <= self.now_seconds]
        return ready[int(self.dice.random() * len(ready))]

    def fault(self, actor: Actor, what: str) -> str | None:
        """What goes wrong with this call, if anything. Delays happen here."""
        self._is_stale = False
        chosen = None
        if self.faults_on:
            draw = self.dice.random()
            for kind, rate in self.kinds:
                draw -= rate
                if draw < 0:
                    chosen = kind
                    break
        self.note(f"{actor.name}: {what}" + (f"  [{chosen}]" if chosen else ""))
        if chosen is None:
            return None
        self.injected[chosen] += 1
        if chosen == "delay":
            actor.sleep(self.dice.choice((5.0, 60.0, 400.0, 4000.0)))
        if chosen == "clock_jump":
            actor.skew_seconds += self.dice.choice((-3600.0, -30.0, 30.0, 3600.0))
        self._is_stale = chosen == "stale_listing"
        return chosen

    def stale(self, actor: Actor) -> bool:
        """Whether the listing that this step makes lags behind."""
        return self._is_stale

    def stop(self) -> None:
        """Kill every actor that is left."""
        self._stopping = True
        for actor in self.actors:
            if not actor.done:
                actor.dead = True
                actor.go.release()
                self.back.acquire()
        self._stopping = False
        self.actors = []
