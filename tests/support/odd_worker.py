"""A worker for tests of the pool: does what its units say, odd things among them."""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from memwal.errors import Refused
from memwal.run.workers.process import Post


class NoTravel(Exception):
    """Can't be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("odd")


class Talkative:
    """Logs while it is pickled."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        logging.getLogger("some.library").warning("I travel")
        return str, ("talked",)


@dataclass
class OddWorker:
    spent: bool = False
    hoard: list[bytes] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def run(self, unit: tuple[str, object], post: Post) -> object:
        word, more = unit
        post.say("doing", word)
        return getattr(self, word)(more)

    def pid(self, more: object) -> int:
        print("this goes to stderr", flush=True)
        return os.getpid()

    def die(self, number: int) -> None:
        os.kill(os.getpid(), number)
        signal.pause()

    def abort(self, more: object) -> None:
        os.abort()

    def leave(self, code: int) -> None:
        os._exit(code)

    def refuse(self, text: str) -> None:
        raise Refused("MW-H01", text)

    def spend(self, more: object) -> int:
        self.spent = True
        return os.getpid()

    def fail(self, more: object) -> None:
        raise ZeroDivisionError("a bug")

    def unsendable(self, more: object) -> object:
        return threading.Lock()

    def untravelled(self, more: object) -> None:
        raise NoTravel(1, 2)

    def grow(self, size: int) -> int:
        self.hoard.append(os.urandom(size))
        return os.getpid()

    def log(self, text: str) -> None:
        logging.getLogger("some.library").warning(text)

    def misspeak(self, more: object) -> str:
        logging.getLogger("some.library").warning("%d", "no number")
        return "spoke"

    def talk(self, more: object) -> Talkative:
        return Talkative()

    def until_cancelled(self, file: str) -> str:
        """Notes its process in a file; ends once it is cancelled, with its commit."""
        Path(file).write_text(str(os.getpid()))
        self.cancelled.wait()
        Path(file).write_text("ended")
        return "ended"

    def deaf(self, file: str) -> None:
        Path(file).write_text(str(os.getpid()))
        threading.Event().wait()

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        pass
