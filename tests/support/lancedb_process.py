"""Clients of LanceDB and lance-context, in a process of an environment that has them."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / os.environ.get("VENV_LANCEDB", ".venv-lancedb") / "bin" / "python"


class LanceDb:
    """Does what it is told, with another Lance than ours (`lancedb_client.py`)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, do: str, **given: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["done"]


@cache
def _start() -> LanceDb:
    client = [str(PYTHON), str(Path(__file__).with_name("lancedb_client.py"))]
    process = subprocess.Popen(client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return LanceDb(process)


@contextmanager
def lancedb_client(folder: Path) -> Iterator[LanceDb]:
    """A client that is connected to the folder. It takes seconds to start, so it is kept."""
    if not (PYTHON.parents[1] / ".ready").exists():
        pytest.skip("no LanceDB here: scripts/setup_lancedb.sh installs it, if it can")
    client = _start()
    client("connect", folder=str(folder))
    try:
        yield client
    except BaseException:
        _start.cache_clear()
        raise
