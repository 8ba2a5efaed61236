"""The quickstart's blocks, in their order, as they stand; in a home folder of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "start" / "quickstart.md"
LANCEDB = ROOT / ".venv-lancedb" / "bin" / "python"
AIRFLOW = ROOT / ".venv-airflow" / "bin" / "airflow"
STANDALONE_SECONDS_MAX = 300

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.races]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who pastes block after block into one shell, and Python where it says so."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = find_free_port()
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "MEMWAL"))
        }
        self._variables = {
            **kept, "HOME": str(home), "AIRFLOW__API__PORT": str(self.port), "COLUMNS": "200",
        }  # fmt: skip
        self._folder = ROOT

    def paste(self, block: str) -> str:
        """Into the shell; what it prints. Folder and variables stay for the next block."""
        left = self.home / "shell"
        shown = self._run(["bash", "-ec", f"{block}\n(pwd; env -0) > {left}"])
        folder, _, variables = left.read_text().partition("\n")
        self._folder = Path(folder)
        self._variables = dict(v.split("=", 1) for v in variables.split("\0") if v)
        return shown

    def paste_python(self, block: str) -> str:
        return self._run([str(LANCEDB) if "import lancedb" in block else "python", "-c", block])

    def stay(self, block: str) -> subprocess.Popen[bytes]:
        """A command that runs until it is stopped."""
        return subprocess.Popen(
            ["bash", "-ec", block], cwd=self._folder, env=self._variables, start_new_session=True,
            stdout=(self.home / "standalone.log").open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(
            words,
            cwd=self._folder,
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words[-1], done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout


def find_free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def of_section(reader: Reader, first: int, last: int) -> Iterator[str]:
    for language, block in BLOCKS[first:last]:
        if language == "sh":
            yield reader.paste(block)
        elif "import lancedb" not in block or LANCEDB.exists():
            yield reader.paste_python(block)


@pytest.mark.timeout(1200)
def test_the_quickstart(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    airflow = next(i for i, (_, block) in enumerate(BLOCKS) if "AIRFLOW_HOME" in block)
    assert (len(BLOCKS), airflow) == (17, 14)
    shown = "\n".join(of_section(reader, 0, airflow))
    assert re.search(r"^ +7 +paid +9\.5$", shown, re.MULTILINE), shown
    assert "pending" in shown
    assert "verify: done" in shown
    assert "0 -> " in shown  # the first merge
    rows = reader.paste("memwal read orders --columns id,status --json")
    assert '"id": 1001' in rows.replace('"id":1001', '"id": 1001')
    if not AIRFLOW.exists():
        pytest.skip("Airflow's part: `make setup` makes .venv-airflow")
    *told, started = BLOCKS[airflow:]
    shown = "\n".join(reader.paste(block) for _, block in told)
    assert '"id":1002' in reader.paste("memwal read orders --json").replace(" ", "")
    assert "not due" in shown
    process = reader.stay(started[1])
    try:
        wait_for(f"http://localhost:{reader.port}/api/v2/monitor/health", process)
        wait_for(f"http://localhost:{reader.port}/", process)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
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
