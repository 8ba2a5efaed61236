"""The quickstart's blocks, in their order, as they stand; in a home folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from scripts.quickstart import (
    AIRFLOW,
    BLOCKS,
    LANCEDB,
    LANCEDBS,
    ROOT,
    Reader,
    check_shown,
)

AIRFLOW_COMMAND = ROOT / ".venv-airflow" / "bin" / "airflow"
STANDALONE_SECONDS_MAX = 300

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.races]


def stay(reader: Reader, block: str) -> subprocess.Popen[bytes]:
    """A command that runs until it is stopped."""
    return subprocess.Popen(
        ["bash", "-ec", block], cwd=reader.folder, env=reader.variables, start_new_session=True,
        stdout=(reader.home / "standalone.log").open("wb"), stderr=subprocess.STDOUT,
    )  # fmt: skip


def find_free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@pytest.mark.timeout(1200)
def test_the_quickstart(tmp_path: Path) -> None:
    reader = Reader(tmp_path, folder=ROOT)
    port = find_free_port()
    reader.variables["AIRFLOW__API__PORT"] = str(port)
    assert (len(BLOCKS), AIRFLOW) == (17, 14)
    check_shown("\n".join(reader.follow(skip=() if LANCEDB.exists() else (LANCEDBS,))))
    rows = reader.paste("memwal read orders --columns id,status --json")
    assert '"id": 1001' in rows.replace('"id":1001', '"id": 1001')
    if not AIRFLOW_COMMAND.exists():
        pytest.skip("Airflow's part: `make setup` makes .venv-airflow")
    *told, started = BLOCKS[AIRFLOW:]
    shown = "\n".join(reader.paste(block) for _, block in told)
    assert '"id":1002' in reader.paste("memwal read orders --json").replace(" ", "")
    assert "not due" in shown
    process = stay(reader, started[1])
    try:
        wait_for(f"http://localhost:{port}/api/v2/monitor/health", process)
        wait_for(f"http://localhost:{port}/", process)
    finally:
        # As Ctrl-C does, which ends its scheduler too. That is in a process group of its own.
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    assert "standalone" in (tmp_path / "standalone.log").read_text()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STANDALONE_SECONDS_MAX
    while True:
        assert process.poll() is None, "airflow standalone ended"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                assert answer.status == 200
                return
        except OSError:
            assert time.monotonic() < deadline, f"no answer from {address}"
            time.sleep(1)
