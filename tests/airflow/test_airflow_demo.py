"""What `make airflow` runs: it comes up on loopback only, shows live tables, and leaves nothing."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from local_airflow import leftovers
from local_airflow.demo_folder import MARKER, TABLES, DemoFolder, Unusable
from local_airflow.home import ROOT
from local_airflow.rest import AirflowClient, wait_until
from local_airflow.server import STOP_SECONDS_MAX

SCRIPT = ROOT / "scripts" / "airflow_demo.py"
START_SECONDS_MAX = 150
# On a machine that is busy, on top of what a keeper allows itself.
END_SECONDS_MAX = STOP_SECONDS_MAX + 15


class Demo:
    """A demo that runs, and what it has printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, "--home", folder, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def printed(self) -> str:
        return "".join(self.lines)

    def wait_until_up(self) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.printed
            return "Ctrl-C stops it." in self.printed

        wait_until("the demo", look, START_SECONDS_MAX)

    @property
    def base_url(self) -> str:
        found = re.search(r"page +(http://127\.0\.0\.1:\d+)/", self.printed)
        assert found, self.printed
        return found[1]

    def password_of(self, user: str) -> str:
        found = re.search(rf"\b{user} / (\S+)", self.printed)
        assert found, self.printed
        return found[1]

    def login(self, user: str) -> AirflowClient:
        return AirflowClient(self.base_url, user, self.password_of(user))

    def processes(self) -> list[psutil.Process]:
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def end(self) -> int:
        """Its exit code, once it is gone and all is read."""
        code = self.process.wait(END_SECONDS_MAX)
        self._reader.join(10)
        return code


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the demo lives. Whatever a failed test leaves is killed."""
    yield tmp_path / "demo"
    leftovers.kill_all(tmp_path / "demo" / "airflow")


@pytest.mark.nightly
@pytest.mark.timeout(600)  # two starts, on a machine where much else may run
def test_it_runs_stops_and_starts_again(folder: Path) -> None:
    first = Demo(folder)
    try:
        first.wait_until_up()
        check_that_it_is_up(first)
        check_that_tables_are_written(folder)

        processes = first.processes()
        assert len(processes) > 6
        first.process.kill()
        first.process.wait()
        psutil.wait_procs(processes, timeout=END_SECONDS_MAX)
        check_that_nothing_is_left(folder, processes)
    finally:
        first.process.kill()

    second = Demo(folder)
    try:
        second.wait_until_up()
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            AirflowClient(second.base_url, "admin", first.password_of("admin"))
        second.login("admin").close()
        processes = second.processes()

        second.process.send_signal(signal.SIGTERM)

        assert second.end() == 0, second.printed
        assert re.search(r"Stopped in \d+ s; nothing is left running", second.printed)
        check_that_nothing_is_left(folder, processes)
    finally:
        second.process.kill()


def check_that_it_is_up(demo: Demo) -> None:
    health = httpx.get(f"{demo.base_url}/api/v2/monitor/health", timeout=30).json()
    assert {part["status"] for part in health.values()} == {"healthy"}
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        AirflowClient(demo.base_url, "admin", "admin")
    for user in ("admin", "viewer"):
        client = demo.login(user)
        dags = {dag["dag_id"]: dag["is_paused"] for dag in client.get("/dags")["dags"]}
        ours = {file.stem for file in (ROOT / "dags").glob("memwal_*.py")}
        assert dags == dict.fromkeys(ours, False)
        client.close()
    assert httpx.get(f"{demo.base_url}/memwal/", timeout=30).status_code == 401
    passwords = demo.folder / "airflow" / "passwords.json"
    assert stat.S_IMODE(passwords.stat().st_mode) == 0o600
    listening = {
        connection.laddr.ip
        for process in demo.processes()
        if process.is_running()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def check_that_tables_are_written(folder: Path) -> None:
    def count() -> int:
        return len([*(folder / "tables" / "orders").rglob("manifest/*.binpb")])

    before = count()
    assert {table.name for table in (folder / "tables").iterdir()} >= {*TABLES}
    wait_until("another flush", lambda: count() > before, 180, every=1)


def check_that_nothing_is_left(folder: Path, processes: list[psutil.Process]) -> None:
    assert [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    assert leftovers.find_processes(folder / "airflow") == []


def test_a_folder_of_somebody_else_is_left_alone_and_a_demos_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "precious").write_text("mine")
    with pytest.raises(Unusable, match="holds something that `make airflow` did not make"):
        DemoFolder(folder=tmp_path / "others").claim(fresh=True)
    assert (tmp_path / "others" / "precious").exists()
    demo = DemoFolder(folder=tmp_path / "demo")
    demo.claim(fresh=False).close()
    (demo.folder / "airflow" / "logs").mkdir(parents=True)
    (demo.folder / "memwal.toml").write_text("")
    with demo.claim(fresh=True):
        assert [entry.name for entry in demo.folder.iterdir()] == [MARKER]
        with pytest.raises(Unusable, match="another `make airflow` runs in"):
            demo.claim(fresh=False)
