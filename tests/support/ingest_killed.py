"""Runs `memwal` with an ingest that kills its own process before its nth step. For tests."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from threading import Lock

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


if __name__ == "__main__":
    memwal.ingest.apply.Track = partial(  # type: ignore[assignment,misc]
        Track, steps=Killer(int(sys.argv[1])), limits=TrackLimits(progress_seconds=0.0)
    )
    main(sys.argv[2:])
