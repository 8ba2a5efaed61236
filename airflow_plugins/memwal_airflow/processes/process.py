"""Runs one command with a bound on its time and on its output."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic as read_monotonic
from typing import TypeVar

from memwal.text import one_line

_CHUNK_BYTES = 1 << 16
_STDERR_KEPT_BYTES = 8 << 10
_LINE_BYTES_MAX = 256 << 10
_TICK_SECONDS = 0.5
_TERM_GRACE_SECONDS = 2.0
JOB_GRACE_SECONDS = 4.0
"""A job that is told to end finishes the commit in hand, and gives its lease back. Airflow kills
the task that waits for it 5 s after it told that to end, and nobody could end the job then."""
_PR_SET_PDEATHSIG = 1
_LATE, _CLOSED = "no answer", "was told to end"
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

Found = TypeVar("Found")
Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a command printed, and how it ended.

    `exit_code` is None if it could not be started or had to be ended; `why` then says why.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = None
    why: str | None = None
    started: bool = True


class Runner:
    """Runs commands, in any number of threads, and can end all that are running."""

    def __init__(self, monotonic: Callable[[], float] = read_monotonic) -> None:
        self._monotonic = monotonic
        self._closed = False

    def close(self) -> None:
        """End everything that is running and start nothing more; a signal handler may call it."""
        self._closed = True

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        seconds_max: float,
        stdout_bytes_max: int,
        say: Say | None = None,
    ) -> Output:
        """Run to the end, the deadline or the byte limit; never raises for what the command does.

        The command gets its own process group, so that whatever it starts ends with it. With `say`
        it is a job: its output goes there line by line, it has time to give its lease back, and it
        is told to end as well when this process dies.
        """
        if self._closed:
            return Output(why=_CLOSED, started=False)
        try:
            process = subprocess.Popen(
                list(argv),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if say is None else subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=None if say is None else partial(_end_with_parent, os.getpid()),
            )
        except OSError as error:
            text = f"can't start {argv[0]}: {error.strerror or error}"
            return Output(why=text, started=False)
        stdout, stderr = bytearray(), bytearray()
        deadline = self._monotonic() + seconds_max
        with process:
            try:
                why = self._read(process, stdout, stderr, deadline, stdout_bytes_max, say)
            finally:
                end_group(process, _TERM_GRACE_SECONDS if say is None else JOB_GRACE_SECONDS)
        if why == _LATE:
            why = f"{_LATE if say is None else 'had not ended'} within {seconds_max:g} s"
        return Output(
            stdout=bytes(stdout),
            stderr=bytes(stderr),
            exit_code=None if why else process.returncode,
            why=why,
        )

    def _read(
        self,
        process: subprocess.Popen[bytes],
        stdout: bytearray,
        stderr: bytearray,
        deadline: float,
        stdout_bytes_max: int,
        say: Say | None,
    ) -> str | None:
        """Read both streams to their end; return None, or why the command has to be ended."""
        with selectors.DefaultSelector() as selector:
            for stream, kept in ((process.stdout, stdout), (process.stderr, stderr)):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ, kept)
            is_over = False
            while not is_over:
                left = deadline - self._monotonic()
                if self._closed or left <= 0:
                    return _CLOSED if self._closed else _LATE
                if not selector.get_map():
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(min(left, _TICK_SECONDS))
                # Looked at before its streams are: what it left behind may hold them open.
                has_ended = process.poll() is not None
                ready = selector.select(0 if has_ended else min(left, _TICK_SECONDS))
                for key, _ in ready:
                    data = os.read(key.fd, _CHUNK_BYTES)
                    key.data.extend(data)
                    if not data:
                        selector.unregister(key.fileobj)
                is_over = has_ended and not ready
                del stderr[:-_STDERR_KEPT_BYTES]
                if say is not None:
                    _say_lines(stdout, say, is_end=is_over)
                elif len(stdout) > stdout_bytes_max:
                    return f"answered with more than {stdout_bytes_max >> 20} MiB"
        return None


async def run_apart(work: Callable[[Runner], Found]) -> Found:
    """Do blocking work in a thread of its own, since a triggerer waits for many and some hang.

    Its command ends with this call.
    """
    runner, pool = Runner(), ThreadPoolExecutor(1)
    try:
        return await asyncio.wrap_future(pool.submit(work, runner))
    finally:
        runner.close()
        pool.shutdown(wait=False)


def _say_lines(kept: bytearray, say: Say, *, is_end: bool = False) -> None:
    """Say the lines that are complete, safe to log: what Spark writes has not been escaped."""
    whole = len(kept) if is_end or len(kept) > _LINE_BYTES_MAX else kept.rfind(b"\n") + 1
    for line in kept[:whole].decode(errors="replace").splitlines():
        say(one_line(line.expandtabs(4)))  # the lines of a stack trace begin with tabs
    del kept[:whole]


def read_messages(text: str) -> list[str]:
    """Split a command's output into lines; for JSON (`--log-format json`), take the messages."""
    return [_read_message(line.strip()) for line in text.splitlines() if line.strip()]


def _read_message(line: str) -> str:
    if not line.startswith("{"):
        return line
    try:
        message = json.loads(line)["message"]
    except (ValueError, KeyError, RecursionError):
        return line
    return message if isinstance(message, str) else line


def end_group(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Send TERM, and after a moment KILL, to what is left of the command's process group."""
    if process.poll() is None and _signal(process.pid, signal.SIGTERM):
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _end_with_parent(parent: int) -> None:
    """Have TERM sent to a job when the process that waits for it dies; runs before exec."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before it could be told
            os.kill(os.getpid(), signal.SIGTERM)


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group; False if there is no such group any more."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
