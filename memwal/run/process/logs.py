"""With `--log-format json` each line on stderr is one JSON object, whoever writes it.

Its keys are `time` (UTC), `level` (debug, info, warning, error), `job`, `table`, `shard`, `run_id`
and `message`; a key without a value is null. Under an Airflow task, `airflow` says which one. What
Lance, the JVM, botocore, Python's warnings and worker processes write to stderr is captured line by
line, with the level that the line seems to have. JSON lines in this format from processes that this
one started pass unchanged.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import zip_longest
from typing import TextIO, cast

from memwal.clock import SystemClock
from memwal.store.records.process import this_task
from memwal.text import iso_time

TEXT, JSON = "text", "json"
_LINE_CHARACTERS_MAX = 64 * 1024
_PIPE_BYTES = 1024 * 1024
_DRAIN_SECONDS_MAX = 2.0
_SAID = re.compile(r"(error|warning): *", re.IGNORECASE)
_LOGGED = re.compile(r'(?<!")\b(FATAL|ERROR|WARN|WARNING|INFO|DEBUG|TRACE)\b|panicked at')
_LEVELS = {"fatal": "error", "critical": "error", "warn": "warning", "trace": "debug"}
_RUN: dict[str, str | None] = dict.fromkeys(("job", "table", "shard", "run_id"))
_NAMES: dict[object, str] = {}
_ABOUT: ContextVar[Mapping[str, str | None]] = ContextVar("memwal_about")


@contextlib.contextmanager
def about(**facts: str | None) -> Iterator[None]:
    """Give these facts (`job`, `table`, `shard`, `exception`) to every line said in the block."""
    token = _ABOUT.set({**_ABOUT.get({}), **facts})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def describe_run(**facts: str | None) -> None:
    """Set facts of every later line of the process: the `job`, its `run_id`, its only `table`."""
    _RUN.update(facts)


def name_table(uri: str, name: str) -> None:
    """Make lines call the table at `uri` by its name, since units only know the address."""
    if _open:
        _NAMES[uri] = name


class JsonLog:
    """Writes JSON lines."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._clock = SystemClock()
        task = this_task()
        self._task = {} if task is None else {"airflow": task.model_dump()}

    def say(self, level: str, message: str, **more: object) -> None:
        """Write one object."""
        level = _LEVELS.get(level, level)
        facts = {**_RUN, **self._task, **_ABOUT.get({}), **more}
        facts["table"] = _NAMES.get(facts["table"], facts["table"])
        time = iso_time(self._clock.now_nanos(), "milliseconds")
        line = {"time": time, "level": level, **facts, "message": message}
        self._write(json.dumps(line, default=str) + "\n")

    def take(self, line: str) -> None:
        """Write a plain text line, from a library or from our own console, as JSON."""
        line = line.rstrip()
        if not line:
            return
        if _is_ours(line):
            self._write(line + "\n")
            return
        said = _SAID.match(line)
        if said is not None:
            self.say(said[1].lower(), line[said.end() :])
            return
        logged = _LOGGED.search(line, 0, 100)
        self.say("info" if logged is None else (logged[1] or "error").lower(), line)


def _is_ours(line: str) -> bool:
    if not line.startswith('{"time": '):
        return False
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"level", "run_id", "message"} <= found.keys()


class _Lines(io.TextIOBase):
    """A text stream whose lines go to the log."""

    encoding = "utf-8"

    def __init__(self, log: JsonLog) -> None:
        self._log = log
        self._part = threading.local()

    def write(self, text: str) -> int:
        *lines, self._part.text = (getattr(self._part, "text", "") + text).split("\n")
        for line in lines:
            self._log.take(line)
        return len(text)

    def flush(self) -> None:
        """Write an unfinished line, such as a prompt, as a line of its own."""
        self.write("\n" if getattr(self._part, "text", "") else "")

    def fileno(self) -> int:
        """Descriptor 2, where writes that bypass this stream go."""
        return 2


class _Handler(logging.Handler):
    """Takes what Python libraries log."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        trace = {} if error is None else {"exception": "".join(traceback.format_exception(error))}
        try:
            message = record.getMessage()
        except Exception:  # the message does not match its arguments; that must not end a job
            message = str(record.msg)
        self._log.say(record.levelname.lower(), message, logger=record.name, **trace)


class _Capture:
    """The process's stderr while its lines are JSON."""

    def __init__(self) -> None:
        self._before = sys.stderr
        self._real: int | None = None
        self._pump: threading.Thread | None = None
        if _has_number_2(self._before):
            self._real = os.dup(2)
            self.log = JsonLog(self._write_real)
            self._take_number_2()
        else:
            self.log = JsonLog(self._before.write)
        self._handler = _Handler(self.log)
        logging.getLogger().addHandler(self._handler)
        logging.captureWarnings(True)
        sys.stderr = cast("TextIO", _Lines(self.log))

    def stop(self) -> None:
        """Restore stderr, after writing what is still in the pipe."""
        sys.stderr.flush()
        sys.stderr = self._before
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self._handler)
        if self._real is not None and self._pump is not None:
            os.dup2(self._real, 2)
            self._pump.join(_DRAIN_SECONDS_MAX)  # a JVM may hold its end for longer

    def _take_number_2(self) -> None:
        ours, theirs = os.pipe()
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import fcntl

            fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.dup2(theirs, 2)
        os.close(theirs)
        self._pump = threading.Thread(target=self._take_all, args=(ours,), daemon=True)
        self._pump.start()

    def _take_all(self, ours: int) -> None:
        with open(ours, errors="replace") as lines:
            while line := lines.readline(_LINE_CHARACTERS_MAX):
                self.log.take(line)

    def _write_real(self, line: str) -> None:
        data = line.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):  # stderr is closed
            while data:
                data = data[os.write(cast("int", self._real), data) :]


_open: list[_Capture] = []


def current() -> JsonLog | None:
    """The log, while lines on stderr are JSON; else None."""
    return _open[0].log if _open else None


def start() -> JsonLog:
    """Turn lines on stderr into JSON from here on; returns the log."""
    if not _open:
        _open.append(_Capture())
    return _open[0].log


def stop() -> None:
    """Restore stderr to plain text."""
    if _open:
        _open.pop().stop()
        _NAMES.clear()


def find_format(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """The log format that a command line asks for, before it has been parsed."""
    found = environment.get("MEMWAL_LOG_FORMAT", TEXT)
    for name, value in zip_longest(arguments, arguments[1:], fillvalue=""):
        if name == "--log-format":
            found = value
        elif name.startswith("--log-format="):
            found = name.partition("=")[2]
    return found


def _has_number_2(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False
