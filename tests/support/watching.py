"""A `memwal watch` in a process of its own: what it tells, and what all its processes take.

Every process that it starts inherits a mark in its environment, so also those that outlive it are
found, however they came to be.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_MARK = "MEMWAL_TESTED_WATCH"
_TICKS = os.sysconf("SC_CLK_TCK")


def _hear_signals() -> None:
    """Undo what `nohup` and a shell's `&` do, which children inherit."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True, kw_only=True)
class Process:
    """One of the watch's processes. `cpu_seconds` has the ended children that it waited for."""

    pid: int
    parent: int
    name: str
    words: str
    cpu_seconds: float
    pss_bytes: int

    @property
    def is_java(self) -> bool:
        return self.name == "java"


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What all the processes take. Memory that several share is counted once."""

    at: float
    processes: int
    cpu_seconds: float
    memory_bytes: int


class Watch:
    """`with Watch([TABLE, ...], folder) as watch:`; it may be killed and started again inside.

    `events` are the lines that it printed, parsed, with the time at which they were read.
    """

    def __init__(self, words: Sequence[object], folder: Path, env: dict[str, str] | None = None):
        self.words = [str(word) for word in words]
        self.stderr_file = folder / "watch.stderr"
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.bad_lines: list[str] = []
        self._env = {**os.environ, **(env or {}), _MARK: uuid.uuid4().hex}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._popen.wait()
        self._reader.join()

    # -- its life

    def start(self) -> None:
        """Start it, again."""
        program = Path(sys.executable).parent / "memwal"
        with self.stderr_file.open("ab") as stderr:
            self._popen = subprocess.Popen(
                [program, "watch", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=self._env,
                preexec_fn=_hear_signals,
            )
        self._reader = threading.Thread(target=self._read, args=[self._popen.stdout], daemon=True)
        self._reader.start()

    def _read(self, lines: Any) -> None:
        with lines:
            for line in lines:
                try:
                    event = json.loads(line)
                    self.events.append((time.time(), {**event}))
                except (ValueError, TypeError):
                    self.bad_lines.append(line)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ended_with(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._popen.poll()

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def wait(self, seconds_max: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        code = self._popen.wait(seconds_max)
        self._reader.join()
        return code

    def wait_until_none_left(self, seconds_max: float) -> float:
        """How long it took until all its processes had ended. Raises AssertionError."""
        began = time.monotonic()
        while left := self.processes():
            assert time.monotonic() - began < seconds_max, f"left behind: {left}"
            time.sleep(0.05)
        return time.monotonic() - began

    def stderr(self) -> str:
        return self.stderr_file.read_text(errors="replace")

    # -- its processes

    def processes(self) -> list[Process]:
        """All that run and bear its mark, zombies left out."""
        mark = f"{_MARK}={self._env[_MARK]}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                # Processes end while they are looked at, and others are not ours to look at.
                with suppress(OSError):
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        found.append(_read_process(folder))
        return [process for process in found if process is not None]

    def workers(self) -> list[Process]:
        """Its processes but itself and Java's."""
        return [p for p in self.processes() if p.pid != self.pid and not p.is_java]

    def take(self) -> Taken:
        """What it takes now; the processor since it was started, of those that still run."""
        found = self.processes()
        return Taken(
            at=time.time(),
            processes=len(found),
            cpu_seconds=sum(process.cpu_seconds for process in found),
            memory_bytes=sum(process.pss_bytes for process in found),
        )


def _read_process(folder: Path) -> Process | None:
    name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] == "Z":
        return None
    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    pss = 0
    for line in (folder / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            pss = int(line.split()[1]) * 1024
    return Process(
        pid=int(folder.name),
        parent=int(fields[1]),
        name=name,
        words=words.strip(),
        cpu_seconds=sum(map(int, fields[11:15])) / _TICKS,
        pss_bytes=pss,
    )
