"""Processes to be killed: forked from one that has everything imported, so that they start at once.

A job that is started so runs the same code as the command line, and dies as a whole from SIGKILL:
no handler runs, and what its threads and Lance's had in flight is cut off.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PRELOADED = [
    "boto3",
    "tests.faults.live",
    "memwal.jobs.compaction.job",
    "memwal.jobs.compaction.store",
    "memwal.jobs.garbage.store",
    "memwal.jobs.index_catchup.store",
    "memwal.jobs.merge.store.table",
    "memwal.store.s3",
    "memwal.jobs.snapshot.store",
]
END_SECONDS_MAX = 120


@contextmanager
def nursery() -> Iterator[Any]:
    """A context whose `Process` starts in milliseconds."""
    context: ForkServerContext = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    before = os.environ.get("PYTHONPATH")
    # The server is started with the first process, and imports by this path.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [before])])
    try:
        first = context.Process(target=_nothing)
        first.start()
        ended(first)
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    yield context


def _nothing() -> None:
    pass


def ended(process: BaseProcess) -> int:
    """Its exit code, once it has ended."""
    process.join(END_SECONDS_MAX)
    assert process.exitcode is not None, f"{process.name} does not end"
    return process.exitcode


def command(arguments: list[str], out: str) -> None:
    """`memwal ARGUMENTS`, in a process of the nursery; stdout goes to `out`, stderr beside it."""
    for stream, path in ((1, out), (2, f"{out}.stderr")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    from memwal.cli import main

    main(arguments)
