"""Runs pytest again and again without the start-up: each run is a fork of this process.

What the tests need from other packages is imported before the fork; memwal and the tests never are,
so every fork imports them from the folder that it is told. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

# Lance and Arrow start their threads at first use, so a fork behind the import alone is safe.
_IMPORTED = (
    "google.protobuf.message",
    "hypothesis.strategies",
    "lance",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pydantic",
    "pyspark.sql",
    "pytest",
    "pytest_timeout",
    "rich.progress",
    "typer",
    "xdist.plugin",
)
_INTERNAL_ERROR = 3


def main() -> None:
    """Serve until the other side closes."""
    for name in _IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        print(json.dumps(answer(request)), flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The exit code of one run; None when it takes too long, and is killed with its children."""
    child = os.fork()
    if child == 0:
        _become_a_run(request)
    watched = os.pidfd_open(child)
    ended, _, _ = select.select([watched], [], [], request["seconds_max"])
    os.close(watched)
    if not ended:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status) if ended else None}


def _become_a_run(request: dict[str, Any]) -> None:
    code = _INTERNAL_ERROR
    try:
        os.setsid()
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        folder = Path(request["folder"])
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = str(folder)
        import pytest

        code = int(pytest.main(request["words"]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
