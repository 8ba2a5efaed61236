"""One job's process, run by `supervise.py`, and the folder through which it is watched.

The folder survives the task's process, the worker's slot and a restart of the triggerer: whoever
watches next goes on reading where the last one stopped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from memwal.errors import Usage
from memwal.text import one_line
from memwal_airflow.processes.process import read_messages

SUPERVISOR = Path(__file__).with_name("supervise.py")
GRACE_SECONDS = 25.0
SILENCE_SECONDS_MAX = 90.0
UNWATCHED_SECONDS_MAX = (300.0, 1800.0)
"""Limits before a trigger has taken over a released job, and after: triggerers may be away."""
FOLDER_AGE_SECONDS_MAX = 86_400.0
RESULT_AGE_SECONDS_MAX = 7 * 86_400.0
"""For a folder whose result may still be collected; triggerers may be away for days."""
LOG_BYTES_PER_READ_MAX = 256 * 1024
REPORT_BYTES_MAX = 64 * 1024 * 1024
LOST = "lost"
_NAME = re.compile(r"[\w-]*-[0-9a-f]{12}\.run")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job's process ended.

    `why` is None if it ended by itself, else `cancelled`, `timed_out`, `detached`, `unwatched`
    or `lost` (its supervisor fell silent; whether the job still runs is not known).
    """

    exit_code: int
    why: str | None = None


class Submission:
    """A run's folder, as used by the task and by the trigger."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.log_position = 0
        self._beat: tuple[int, float] | None = None

    @property
    def report_file(self) -> Path:
        """Where the job writes its report, unless that goes to an object store."""
        return self.folder / "report.json"

    def read_end(self) -> Ended | None:
        """Return how the job ended; None while it runs."""
        try:
            found = json.loads((self.folder / "exit.json").read_text())
        except FileNotFoundError:
            return None
        return Ended(exit_code=int(found["exit_code"]), why=found["why"])

    def check_heartbeat(self) -> Ended | None:
        """Return `lost` if the supervisor's heartbeat has stopped for too long, else None.

        The heartbeat is only compared with its own earlier values, since the clocks of two machines
        may differ.
        """
        try:
            beat = (self.folder / "heartbeat").stat().st_mtime_ns
        except FileNotFoundError:
            beat = 0
        now = time.monotonic()
        if self._beat is None or self._beat[0] != beat:
            self._beat = (beat, now)
        if now - self._beat[1] > SILENCE_SECONDS_MAX:
            return self.read_end() or Ended(exit_code=-1, why=LOST)
        return None

    def follow(self) -> tuple[Ended | None, list[str]]:
        """Return how the job ended, if it did, and the log's lines since the last call."""
        ended = self.read_end() or self.check_heartbeat()
        return ended, self.read_new_lines() if ended is None else self.read_remaining_lines()

    def read_new_lines(self) -> list[str]:
        """Return the log's complete lines since the last call, or the first of very many."""
        piece = self._read_log(self.log_position)
        whole = piece.rfind(b"\n") + 1
        if not whole and len(piece) == LOG_BYTES_PER_READ_MAX:
            whole = len(piece)
        self.log_position += whole
        return _lines(piece[:whole])

    def read_remaining_lines(self) -> list[str]:
        """Return the rest of the log once the job is over, including an incomplete last line."""
        lines: list[str] = []
        while more := self.read_new_lines():
            lines += more
        return [*lines, *_lines(self._read_log(self.log_position, None))]

    def read_last_line(self) -> str | None:
        """Return the log's last error line, else its last line that is not empty.

        Looks at the last 256 KiB. Error lines come first because Spark prints more lines at its
        end, even after a job that did not begin.
        """
        lines = read_messages(self._read_log(-LOG_BYTES_PER_READ_MAX).decode(errors="replace"))
        errors = [line for line in lines if line.lower().startswith("error: ")]
        return next(reversed(errors or lines), None)

    def _read_log(self, start: int, bytes_max: int | None = LOG_BYTES_PER_READ_MAX) -> bytes:
        """Read a part of the log; a negative `start` counts from its end."""
        try:
            with (self.folder / "log.txt").open("rb") as log:
                log.seek(start if start >= 0 else max(0, log.seek(0, os.SEEK_END) + start))
                return log.read(bytes_max)
        except FileNotFoundError:
            return b""

    def read_report(self) -> Mapping[str, Any] | None:
        """Return the job's report; None if there is none, or if it is not a JSON object."""
        try:
            if self.report_file.stat().st_size > REPORT_BYTES_MAX:
                return None
            found = json.loads(self.report_file.read_text())
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def read_order(self) -> dict[str, Any]:
        """Return what was started in the folder; empty if nothing was, or it can't be read here."""
        try:
            found = json.loads((self.folder / "order.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def release(self) -> None:
        """Let the job go on without the task that started it, watched by somebody else."""
        self._touch("released")

    def mark_watched(self) -> None:
        """Show the supervisor that somebody is waiting for the released job."""
        self._touch("watched")

    def cancel(self) -> None:
        """Ask the supervisor to end the job."""
        self._touch("cancel")

    def _touch(self, name: str) -> None:
        if self.folder.is_dir():
            (self.folder / name).touch()

    def forget(self, ended: Ended) -> None:
        """Remove the folder. If the job may still be running, ask it to end instead."""
        if ended.why == LOST:
            self.cancel()
        else:
            self.remove()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def make_folder(directory: str, label: str) -> Submission:
    """Make a run folder that only this user can read, and remove folders long out of use.

    Raises Usage if others may write to the directory: they could change what is run from it.
    """
    parent = Path(directory)
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Usage(
            f"[memwal] run_directory {parent}: must be a folder of this user's own that nobody "
            "else can write to"
        )
    _remove_old(parent)
    tidy = "".join(c if c.isalnum() or c in "-_" else "-" for c in label)[:80]
    folder = parent / f"{tidy}-{uuid4().hex[:12]}.run"
    folder.mkdir(mode=0o700)
    return Submission(folder)


def find_folder(directory: str, name: str) -> Submission | None:
    """Return the run folder of that name, if we made it; the name itself is not trusted."""
    folder = Path(directory) / Path(name).name
    return Submission(folder) if _is_own(folder) else None


def start(
    submission: Submission,
    argv: Sequence[str],
    variables: Mapping[str, str],
    *,
    seconds_max: float,
    task: Mapping[str, Any] | None = None,
) -> subprocess.Popen[bytes]:
    """Start the supervisor and return its process.

    The supervisor ends the job when the process's stdin closes, unless the job was released before.
    `task` is the Airflow task that the job belongs to (see `describe_task`).
    """
    order = {
        "task": task,
        "argv": list(argv),
        "seconds_max": seconds_max,
        "unwatched_seconds_max": list(UNWATCHED_SECONDS_MAX),
        "grace_seconds": GRACE_SECONDS,
    }
    (submission.folder / "order.json").write_text(json.dumps(order))
    own_log = (submission.folder / "supervisor.txt").open("ab")
    with own_log:
        return subprocess.Popen(
            [sys.executable, "-I", str(SUPERVISOR), str(submission.folder)],
            stdin=subprocess.PIPE,
            stdout=own_log,
            stderr=own_log,
            env=dict(variables),
            start_new_session=True,
        )


def _lines(piece: bytes) -> list[str]:
    """Split into lines that are safe to log; what Spark writes has not been escaped."""
    # The lines of a stack trace begin with tabs.
    return [one_line(line.expandtabs(4)) for line in piece.decode(errors="replace").splitlines()]


def _remove_old(parent: Path) -> None:
    """Remove old run folders that killed tasks left behind, and nothing else."""
    now = time.time()
    for folder in filter(_is_own, parent.iterdir()):
        try:
            ended = Submission(folder).read_end()
            beat = folder / "heartbeat"
            last = (beat if beat.exists() else folder).stat().st_mtime
        except (OSError, ValueError, KeyError):
            continue
        has_result = ended is not None and ended.why is None
        limit = RESULT_AGE_SECONDS_MAX if has_result else FOLDER_AGE_SECONDS_MAX
        if now - last > limit and os.access(folder, os.W_OK):
            shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Whether `make_folder` made this folder; others may keep folders there too."""
    return bool(_NAME.fullmatch(folder.name)) and folder.is_dir() and not folder.is_symlink()
