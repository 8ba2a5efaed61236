"""An ingest that kills its own process before its nth step. For tests."""

from __future__ import annotations

import os
import signal
from functools import partial
from threading import Lock
from typing import Any

import memwal.ingest.apply
from memwal.cli import main
from memwal.ingest.track import Track, TrackLimits


class Killer:
    """Ends the process at the nth step as a power cut would."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self._lock = Lock()

    def __call__(self, step: str) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def ingest_and_die(nth: int, words: list[str]) -> None:
    """`memwal ingest WORDS`, in a process of its own, which ends before its nth step."""
    steps: Any = partial(Track, steps=Killer(nth), limits=TrackLimits(progress_seconds=0.0))
    memwal.ingest.apply.Track = steps  # type: ignore[misc]
    main(["ingest", *words])
