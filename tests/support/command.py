"""`memwal` in this process: what a command prints, and how it ends.

Where a process is the point (signals, closed streams, what is imported), start one: `nursery`.
"""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import Any

import pytest

from memwal.cli.app import app


def run_here(*words: object, one_place: bool = False) -> CompletedProcess[str]:
    """Run a command. With `one_place`, stderr goes where stdout goes, as on a terminal."""
    given = [str(word) for word in words]
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        with (
            redirect_stdout(out),
            redirect_stderr(out if one_place else err),
            pytest.raises(SystemExit) as ended,
        ):
            app(given)
        out.seek(0)
        err.seek(0)
        return CompletedProcess(given, int(ended.value.code or 0), out.read(), err.read())


def read_document(*words: object) -> dict[str, Any]:
    """What a command prints with --json."""
    found = json.loads(run_here(*words, "--json").stdout)
    assert isinstance(found, dict)
    return found
