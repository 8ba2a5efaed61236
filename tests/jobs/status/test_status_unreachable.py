"""Tables whose store does not answer, beside others."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from memwal.config import ResolvedTable, Settings
from memwal.jobs.status.job import run_status
from memwal.jobs.status.show import show_tables
from memwal.run.options import RunOptions
from tests.jobs.status.test_status_shown import shown
from tests.support.builders import make_table

pytestmark = pytest.mark.nightly

STORE_SECONDS = 2


def test_their_number_adds_nothing_to_the_wait(tmp_path: Path) -> None:
    make_table(str(tmp_path / "t"), rows=range(3), indexed=False)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:  # which is never read
        away = {
            "aws_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "allow_http": "true",
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
            "aws_region": "us-east-1",
            "client_retry_timeout": str(STORE_SECONDS),
        }
        places = [(f"s3://lake/away{n}", away) for n in range(6)]
        tables = [
            ResolvedTable(name=uri[-5:], uri=uri, settings=Settings(), storage_options=options)
            for uri, options in [*places, (str(tmp_path / "t"), {}), (str(tmp_path / "no"), {})]
        ]
        began = time.monotonic()
        report = run_status(RunOptions(tables=tables))
        seconds = time.monotonic() - began

    assert STORE_SECONDS <= seconds < 2 * STORE_SECONDS
    *unreachable, there, missing = report.tables
    assert {(t.outcome, t.exit_code, t.unreachable) for t in unreachable} == {("failed", 1, True)}
    assert (there.outcome, there.unreachable) == ("done", False)
    assert (missing.exit_code, missing.unreachable) == (2, False)
    assert (report.outcome, report.exit_code) == ("partial", 6)
    lines = [line.split() for line in shown(*report.tables, show_tables=show_tables)]
    assert ["away0", *"?????", "unreachable"] in lines
