"""With `--log-format json` each line that Python code writes to stderr is one JSON object.

Its keys are `time` (UTC), `level` (debug, info, warning, error), `job`, `table`, `shard`, `run_id`
and `message`; a key without a value is null. Under an Airflow task, `airflow` says which one. What
Python's libraries and warnings say is taken up line by line, with the level that the line seems to
have. Lance's Rust code and the JVM write around it, as they always do.
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
        said = _SAID.match(line)
        if said is not None:
            self.say(said[1].lower(), line[said.end() :])
            return
        logged = _LOGGED.search(line, 0, 100)
        self.say("info" if logged is None else (logged[1] or "error").lower(), line)


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
        self.log = JsonLog(self._write)
        self._handler = _Handler(self.log)
        logging.getLogger().addHandler(self._handler)
        logging.captureWarnings(True)
        sys.stderr = cast("TextIO", _Lines(self.log))

    def stop(self) -> None:
        """Restore stderr."""
        sys.stderr.flush()
        sys.stderr = self._before
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self._handler)

    def _write(self, line: str) -> None:
        self._before.write(line)
        self._before.flush()


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
