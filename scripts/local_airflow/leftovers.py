"""Finds the processes of an Airflow by their environment, whatever their parents are now."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from local_airflow.home import MARK


def find_processes(home: Path) -> list[int]:
    """List the ids of other processes whose environment carries the mark of `home`."""
    wanted = f"{MARK}={home}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return sorted(set(found) - {os.getpid()})


def kill_all(home: Path) -> int:
    """Kill what is left of an Airflow whose keeper is gone, and return how many processes."""
    killed: set[int] = set()
    while alive := find_processes(home):
        killed |= set(alive)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return len(killed)
