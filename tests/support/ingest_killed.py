"""An ingest that kills its own process before its nth step. For tests."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import memwal.ingest.apply
from memwal.cli import main
from memwal.ingest.track import Track, TrackLimits
from tests.support.stopping import Stopper


class Killer(Stopper):
    """Ends the process at the nth step as a power cut would."""

    def stop(self, step: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def ingest_and_die(nth: int, words: list[str]) -> None:
    """`memwal ingest WORDS`, in a process of its own, which ends before its nth step."""
    steps: Any = partial(Track, steps=Killer(nth), limits=TrackLimits(progress_seconds=0.0))
    memwal.ingest.apply.Track = steps  # type: ignore[misc]
    main(["ingest", *words])
