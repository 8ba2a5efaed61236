"""The process that an Airflow runs under: it starts the parts, and leaves none of them behind.

Airflow's own `standalone` leaves its children behind when it is told to stop, and a task's
processes may leave their parents' groups and sessions. So the keeper is a "child subreaper" (Linux,
prctl 2): a descendant that loses its parent becomes its child, and it ends once it has no children.

It reads one line from stdin, `{"commands": [{"name", "argv", "env", "cwd", "log"}], "asking": S,
"telling": S}` (see Patience), and runs until stdin ends (so it does not outlive whoever started it,
even if that was killed), a TERM or INT comes, or one of the commands ends. It writes a line of JSON
on stdout for each event: `{"started": {NAME: PID}}`, `{"ended": NAME, "code": CODE}`,
`{"stopped": SECONDS, "killed": N}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How many seconds to wait while stopping.

    The commands get a TERM, and `asking` seconds to end. Then everything below the keeper gets a
    TERM, and `telling` seconds before what is left is killed.
    """

    asking: float = 4.0
    telling: float = 4.0


def main() -> None:
    """Run until it is time to stop."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signals = _open_signal_pipe()
    plan = json.loads(sys.stdin.buffer.readline())
    parts = {_start(command).pid: command["name"] for command in plan["commands"]}
    _report(started={name: pid for pid, name in parts.items()})
    _watch(signals, parts)
    _stop(parts, Patience(**{k: plan[k] for k in ("asking", "telling") if k in plan}))


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _open_signal_pipe() -> int:
    """Return a file descriptor from which the number of each arriving signal can be read."""
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def _start(command: dict[str, Any]) -> subprocess.Popen[bytes]:
    with Path(command["log"]).open("wb") as log:
        return subprocess.Popen(
            command["argv"],
            env=command["env"],
            cwd=command["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # If the keeper itself is killed, at least the parts end with it.
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )


def _report(**event: Any) -> None:
    # The reader may be gone; stopping continues regardless.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _watch(signals: int, parts: dict[int, str]) -> None:
    """Return when it is time to stop. Parts that end are taken out of `parts`."""
    with DefaultSelector() as selector:
        selector.register(signals, EVENT_READ)
        selector.register(0, EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if 0 in ready and not os.read(0, 4096):
                return
            if signals in ready:
                arrived = set(os.read(signals, 4096))
                if arrived & {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
                    return
                if _reap(parts):
                    return


def _reap(parts: dict[int, str]) -> bool:
    """Collect the children that have ended, and return whether one of `parts` was among them."""
    ended = False
    for pid, status in _collect_ended():
        if pid in parts:
            ended = True
            _report(ended=parts.pop(pid), code=os.waitstatus_to_exitcode(status))
    return ended


def _collect_ended() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            yield found


def _stop(parts: dict[int, str], patience: Patience) -> None:
    """Stop everything in three steps: ask, tell, kill. Returns when no descendant is left."""
    began = time.monotonic()
    killed: set[int] = set()
    _signal_all(parts, signal.SIGTERM)
    if not _wait_until_gone(patience.asking):
        _signal_all(_list_descendants(), signal.SIGTERM)
        if not _wait_until_gone(patience.telling):
            # A process may start another one during the look, so look until there are none.
            while not _wait_until_gone(0.05):
                alive = _list_descendants()
                killed |= set(alive)
                _signal_all(alive, signal.SIGKILL)
    _report(stopped=round(time.monotonic() - began, 2), killed=len(killed))


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_until_gone(seconds: float) -> bool:
    """Wait until there are no children, and so, for a subreaper, no descendants either."""
    end = time.monotonic() + seconds
    while True:
        for _ in _collect_ended():
            pass
        if not _has_children():
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _list_descendants() -> list[int]:
    """List all processes below this one, parents before their children."""
    children: dict[int, list[int]] = {}
    for pid, parent in _list_parents():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def _list_parents() -> Iterator[tuple[int, int]]:
    """Yield (process id, parent's id) of every process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name in brackets may hold anything, so count from its end.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield int(folder.name), int(fields[1])


if __name__ == "__main__":
    main()
