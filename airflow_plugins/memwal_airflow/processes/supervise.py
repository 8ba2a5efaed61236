"""Runs one job's process, and outlives the Airflow task that started it.

    python -I supervise.py RUN_FOLDER

It uses only the standard library and is run by its path, so it starts in milliseconds and needs
neither Airflow nor this package. It shares only the run's folder with the task and the trigger:

    order.json      what to run: {"argv", "seconds_max", "unwatched_seconds_max", "grace_seconds"};
                    `unwatched_seconds_max` is [before the first watch, after it]; "task", the task
                    that the job belongs to, is for later tries
    heartbeat       touched all the time while this process lives
    released        made by the task when somebody else will be waiting for the job
    watched         touched by whoever waits for a released job
    log.txt         stdout and stderr of the job
    cancel          made by whoever wants the job to stop
    exit.json       made once the job is over: {"exit_code", "why"}

`why` is null when the job ended by itself, else cancelled, detached, unwatched or timed_out.
The job is ended when this process's standard input ends: the task that started it is gone, and
nobody would look at the result. A released job is ended if nobody has watched it for too long: its
task may have been killed before a trigger took over, which Airflow reports to nobody.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

TICK_SECONDS = 0.2
PR_SET_PDEATHSIG = 1


def main(folder: Path) -> int:
    """Run the order of `folder` to its end."""
    order = json.loads((folder / "order.json").read_text())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    (folder / "heartbeat").touch()
    try:
        with (folder / "log.txt").open("ab") as log:
            # Its own session, so that the whole tree (spark-submit, its JVM, its Python) can
            # be told to stop at once.
            process = subprocess.Popen(
                order["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
    except OSError as error:
        write_whole(folder / "log.txt", f"{order['argv'][0]}: {error}\n")
        finish(folder, 127, None)
        return 1
    try:
        why = watch(process, folder, order, stop)
    except OSError:
        # The folder is gone or can't be reached, so nobody can watch the job any more.
        why = "unwatched"
    if why is not None:
        end_group(process, float(order["grace_seconds"]))
    code = process.wait()
    finish(folder, code, why)
    return 0


def watch(
    process: subprocess.Popen[bytes], folder: Path, order: dict[str, Any], stop: threading.Event
) -> str | None:
    """Wait for the job's end; return None, or why it has to be ended."""
    deadline = time.monotonic() + float(order["seconds_max"])
    watcher, released = None, folder / "released"
    while process.poll() is None:
        (folder / "heartbeat").touch()
        if stop.is_set() or (folder / "cancel").exists():
            return "cancelled"
        if time.monotonic() > deadline:
            return "timed_out"
        if watcher is not None:
            if watcher.is_gone():
                return "unwatched"
            time.sleep(TICK_SECONDS)
        elif released.exists():
            watcher = Watcher(folder / "watched", *order["unwatched_seconds_max"])
        elif has_input_ended() and not released.exists():
            # Check `released` once more: a task that releases its job goes away right after.
            return "detached"
    return None


class Watcher:
    """Notices when a file is no longer touched.

    It compares the file's time with the one seen before, not with a clock.
    """

    def __init__(self, file: Path, first_seconds_max: float, later_seconds_max: float) -> None:
        self.file = file
        self.first_seconds_max = first_seconds_max
        self.later_seconds_max = later_seconds_max
        self.touched = 0
        self.seen = time.monotonic()

    def is_gone(self) -> bool:
        """Whether nobody has touched the file for too long."""
        try:
            touched = self.file.stat().st_mtime_ns
        except FileNotFoundError:
            touched = 0
        if touched != self.touched:
            self.touched, self.seen = touched, time.monotonic()
        limit = self.later_seconds_max if self.touched else self.first_seconds_max
        return time.monotonic() - self.seen > limit


def has_input_ended() -> bool:
    """Wait a moment for the end of standard input, and return whether it came."""
    readable, _, _ = select.select([sys.stdin], [], [], TICK_SECONDS)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def end_with_parent() -> None:
    """Have TERM sent to the job when this supervisor dies; runs in its process before exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_group(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Send TERM to the job's process group, then KILL to what is left of it."""
    signal_group(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while is_group_alive(process) and time.monotonic() < deadline:
        time.sleep(0.1)
    signal_group(process.pid, signal.SIGKILL)


def is_group_alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the group is left; reaps the leader first, as zombies count."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def finish(folder: Path, code: int, why: str | None) -> None:
    """Report the job's end, after which nobody waits any more."""
    write_whole(folder / "exit.json", json.dumps({"exit_code": code, "why": why}))


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: it is there whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
