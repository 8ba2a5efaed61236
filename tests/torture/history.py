"""What happened, one JSON object a line, written by every process as it happens.

The clock is the machine's monotonic one, in nanoseconds, which all of its processes share.

    table    table, rows ([key, id] in the base), policy, keyed, clone, shards, doubled, columns
    open     table, shard, session, by, begin: a writer has claimed its shard
    op       table, shard, session, by, id, deletes, keys: a writer is about to put or delete
    ack      id: the put or delete returned
    flush    table, shard, session, begin: a close returned that began then
    job      table, name, args, begin, exit, said, final
    restore  table, begin, version
    read     table, level, by, begin, exit, rows ([key, id] or [key, id, total, log]), keys, moment
    copy     table, begin, version, rows, base: a consumer of the changes has come to that version
    columns  table, begin: columns were changed, and what waited follows the advice and is merged
    drill    verdict, and all that was seen of a damaged copy
    fault    table, what, detail: what is no matter of rows
    stop     table, who, signal: a process was killed or stalled

`at` is when the line was written: the end of what has a `begin`.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "history.jsonl"
Event = dict[str, Any]


def now() -> int:
    return time.monotonic_ns()


def turns(seed: str, until: float) -> Iterator[random.Random]:
    """The same chance over and over, until the time has come."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        yield chance


class History:
    """Appends to the history of a folder, which may have other writers in other processes."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        self._file = os.open(Path(folder) / NAME, flags, 0o644)

    def add(self, kind: str, **facts: Any) -> None:
        line = json.dumps({"kind": kind, "at": now(), **facts}, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())  # one write, so that lines stay whole


def load(folder: Path) -> Iterator[Event]:
    """The events in the order of their lines; what a killed process began to write is left out."""
    with (folder / NAME).open() as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield {"line": number, **json.loads(line)}
            except ValueError:
                continue
