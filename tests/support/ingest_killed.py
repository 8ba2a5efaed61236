"""An ingest that kills its own process, at a step or in a phase. For tests."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import Any

import memwal.ingest.apply
import memwal.ingest.track
from memwal.cli import main
from memwal.ingest.track import Track, TrackLimits
from memwal.store.records.ingests import Rounds
from tests.support.stopping import Stopper

PHASES = ("plan", "route", "claim", "session", "entry", "written", "flush", "rejects", "progress",
          "close")  # fmt: skip
"""Where `ingest_and_die_in` can end a process, in the order in which an ingest comes by."""
_STEP_OF = {"flush": "written"}


class Killer(Stopper):
    """Ends the process at the nth step as a power cut would."""

    def stop(self, step: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class PhaseKiller:
    """Does so when a phase comes for the nth time; that many seconds later, from beside it."""

    def __init__(self, phase: str, nth: int, seconds: float) -> None:
        self.step, self.left, self.seconds = _STEP_OF.get(phase, phase), nth, seconds
        self.lock = threading.Lock()

    def __call__(self, step: str) -> None:
        if step != self.step:
            return
        with self.lock:
            self.left -= 1
            if self.left == 0 and self.seconds:
                threading.Thread(target=self.kill, daemon=True).start()
            elif self.left == 0:
                self.kill()

    def kill(self) -> None:
        time.sleep(self.seconds)
        os.kill(os.getpid(), signal.SIGKILL)


def ingest_and_die(nth: int, words: list[str]) -> None:
    """`memwal ingest WORDS`, in a process of its own, which ends before its nth step."""
    steps: Any = partial(Track, steps=Killer(nth), limits=TrackLimits(progress_seconds=0.0))
    memwal.ingest.apply.Track = steps  # type: ignore[misc]
    main(["ingest", *words])


def ingest_and_die_in(
    phase: str, nth: int, seconds: float, progress_seconds: float, words: list[str]
) -> None:
    """`memwal ingest WORDS`, killed in a phase, unless that does not come `nth` times."""
    killer: Any = PhaseKiller(phase, nth, seconds)
    limits = TrackLimits(progress_seconds=progress_seconds)
    steps: Any = partial(Track, steps=killer, limits=limits)
    memwal.ingest.apply.Track = steps  # type: ignore[misc]
    route, begin = memwal.ingest.track.route_rows, Rounds.begin

    def route_or_die(*asked: Any, **more: Any) -> Any:
        killer("route")
        return route(*asked, **more)

    def begin_or_die(*asked: Any) -> Any:
        killer("plan")
        begun = begin(*asked)
        killer("plan")
        return begun

    memwal.ingest.track.route_rows = route_or_die
    Rounds.begin = begin_or_die  # type: ignore[method-assign]
    main(["ingest", *words])
