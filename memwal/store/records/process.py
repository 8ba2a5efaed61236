"""Names this process so that a later run on the same host can tell whether it has ended.

A pid alone proves nothing: it is used again, and containers that share a host's name count their
own. So a holder also says when its process started, and a digest of the host name, the boot id and
the pid and time namespaces, in which both numbers have their meaning. Of a holder on another host,
boot or namespace, or where one of these can't be read, nothing is known.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from memwal.config import AIRFLOW_TASK_VARIABLE

if TYPE_CHECKING:
    from memwal.report import AirflowTask

_PROC = Path("/proc")
_PROCESS = re.compile(r":([1-9][0-9]{0,9}) \(start ([0-9]{1,20}), boot ([0-9a-f]{16})\)\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stat:
    """What `/proc/PID/stat` says. `started` is in clock ticks since the boot."""

    started: str
    over: bool


def this_holder() -> str:
    """Who we are, for leases and run records: `user@host:pid (start TICKS, boot DIGEST)`.

    Without the brackets where the host does not tell what stands in them.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    name = f"{user}@{socket.gethostname()}:{os.getpid()}"
    boot, stat = _boot(), _stat(os.getpid())
    return name if boot is None or stat is None else f"{name} (start {stat.started}, boot {boot})"


def this_task() -> AirflowTask | None:
    """The task of Airflow that started this process, if it says so; for people only."""
    from memwal.report import AirflowTask

    try:
        return AirflowTask.model_validate_json(os.environ.get(AIRFLOW_TASK_VARIABLE, ""))
    except ValidationError:
        return None


def is_gone(holder: str) -> bool:
    """Whether the holder's process provably ran here and has ended; False where that is not sure.

    Tasks that it left running elsewhere (a Spark application's, for some seconds) find the newer
    claim before their next commit.
    """
    named = _PROCESS.search(holder)
    if named is None or named[3] != _boot():
        return False
    pid = int(named[1])
    try:
        os.kill(pid, 0)  # also finds what a /proc mounted with hidepid hides
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # it exists and is another user's, or can't be a pid
    stat = _stat(pid)
    return stat is not None and (stat.over or stat.started != named[2])


def _boot() -> str | None:
    """This host, boot and namespaces; None where they can't be told for sure."""
    try:
        status = (_PROC / "self/status").read_text()
        named = [
            socket.gethostname(),
            (_PROC / "sys/kernel/random/boot_id").read_text().strip(),
            str((_PROC / "self/ns/pid").readlink()),
        ]
        times = _PROC / "self/ns/time"  # none before Linux 5.6
        named.append(str(times.readlink()) if times.is_symlink() else "")
    except OSError:
        return None
    # More than one number, or another: /proc shows the pids of another namespace than ours.
    if re.search(rf"^NSpid:\s+{os.getpid()}$", status, re.MULTILINE) is None or not all(named[:3]):
        return None
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:16]


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / f"{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    if len(fields) < 20 or not fields[19].isdecimal():
        return None
    # A process whose parent has not fetched its end is over once none of its threads is left.
    return _Stat(started=fields[19], over=fields[0] in ("Z", "X") and fields[17] == "1")
