"""Runs one command with a bound on its time and on its output."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_CHUNK_BYTES = 1 << 16
_STDERR_KEPT_BYTES = 8 << 10
_TERM_GRACE_SECONDS = 2.0
_LATE = "late"


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a command printed, and how it ended.

    `exit_code` is None if it could not be started or had to be ended; `why` then says why, and
    `late` whether time ran out.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = None
    why: str | None = None
    started: bool = True
    late: bool = False


class Runner:
    """Starts commands, and can end all that are running. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._closed = False

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        seconds_max: float,
        stdout_bytes_max: int,
    ) -> Output:
        """Run to the end, the deadline or the byte limit; never raises for what the command does.

        The command gets its own process group, so that whatever it starts ends with it.
        """
        try:
            process = self._start(argv, environment)
        except OSError as error:
            text = f"can't start {argv[0]}: {error.strerror or error}"
            return Output(why=text, started=False)
        stdout, stderr = bytearray(), bytearray()
        try:
            deadline = self._monotonic() + seconds_max
            why = self._read(process, stdout, stderr, deadline, stdout_bytes_max)
            late = why == _LATE
            if late:
                why = f"no answer within {seconds_max:g} s"
        finally:
            end_group(process)
            with self._lock:
                self._running.discard(process.pid)
        code = None if why else process.returncode
        return Output(
            stdout=bytes(stdout), stderr=bytes(stderr), exit_code=code, why=why, late=late
        )

    def close(self) -> None:
        """End everything that is running and start nothing more."""
        with self._lock:
            self._closed = True
            running = tuple(self._running)
        for group in running:
            _signal(group, signal.SIGKILL)

    def _start(
        self, argv: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise OSError("shutting down")
            process = subprocess.Popen(
                list(argv),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._running.add(process.pid)
            return process

    def _read(
        self,
        process: subprocess.Popen[bytes],
        stdout: bytearray,
        stderr: bytearray,
        deadline: float,
        stdout_bytes_max: int,
    ) -> str | None:
        """Read both streams to their end; return None, or why the command has to be ended."""
        with selectors.DefaultSelector() as selector, process:
            for stream, kept in ((process.stdout, stdout), (process.stderr, stderr)):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ, kept)
            while selector.get_map():
                left = deadline - self._monotonic()
                if left <= 0:
                    end_group(process)
                    return _LATE
                for key, _ in selector.select(min(left, 1.0)):
                    data = os.read(key.fd, _CHUNK_BYTES)
                    key.data.extend(data)
                    if not data:
                        selector.unregister(key.fileobj)
                del stderr[:-_STDERR_KEPT_BYTES]
                if len(stdout) > stdout_bytes_max:
                    end_group(process)
                    return f"answered with more than {stdout_bytes_max >> 20} MiB"
            try:
                process.wait(max(deadline - self._monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                end_group(process)
                return _LATE
        return None


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


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Send TERM, and after a moment KILL, to what is left of the command's process group."""
    if not _signal(process.pid, signal.SIGTERM):
        process.poll()
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TERM_GRACE_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group; False if there is no such group any more."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
