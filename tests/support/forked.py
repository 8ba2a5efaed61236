"""What a forked child is told."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable


def in_child(act: Callable[[], object]) -> str:
    """What a forked child is told: the error's text, or nothing."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        said = ""
        signal.alarm(20)  # a child that waits for threads that it doesn't have
        try:
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(into, said.encode())
            os._exit(0)
    os.close(into)
    os.waitpid(child, 0)
    with os.fdopen(out) as told:
        return told.read()
