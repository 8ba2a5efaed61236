"""Jobs through spark-submit, on a standalone master and worker on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from memwal.jobs.demo import table as demo

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
UP_SECONDS = 90


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# As memwal's own local sessions have them: these JVMs end before they could gain from more.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": JVM,
        "SPARK_LAUNCHER_OPTS": JVM,
        "SPARK_SUBMIT_OPTS": JVM,
    }


@contextmanager
def daemon(log: Path, *arguments: str) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_for_worker(web_port: int, log: Path) -> None:
    deadline = time.monotonic() + UP_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=2) as page:
                if json.load(page)["aliveworkers"] == 1:
                    return
        except OSError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"no worker within {UP_SECONDS} s:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("spark")
    port, web_port, worker_port = find_free_port(), find_free_port(), find_free_port()
    url = f"spark://127.0.0.1:{port}"
    with (
        daemon(
            folder / "master.log", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
            "--port", str(port), "--webui-port", str(web_port),
        ),
        daemon(
            folder / "worker.log", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
            "--webui-port", str(worker_port), "-c", "2", "-m", "2g", "-d", str(folder), url,
        ),
    ):  # fmt: skip
        wait_for_worker(web_port, folder / "worker.log")
        yield url


def submit(master: str, *arguments: str, job: str = "merge") -> subprocess.CompletedProcess:
    confs = (
        "spark.executor.memory=1g",
        "spark.driver.host=127.0.0.1",
        "spark.ui.enabled=false",
        f"spark.executor.extraJavaOptions={JVM}",
    )
    flags = [flag for pair in confs for flag in ("--conf", pair)]
    spark_submit = Path(sys.executable).with_name("spark-submit")
    return subprocess.run(
        [
            str(spark_submit),
            "--master",
            master,
            *flags,
            str(ROOT / "jobs" / f"{job}.py"),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(),
        check=False,
    )


def test_merge_on_a_standalone_cluster(master: str, tmp_path: Path) -> None:
    tables = [demo.make_table(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 2))]
    assert all(demo.count_differences(table) > 0 for table in tables)
    report_file = tmp_path / "report.json"
    ran = submit(master, *(t.uri for t in tables), "--json", "--report", str(report_file))
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(report_file.read_text())
    assert json.loads(ran.stdout) == report
    assert report["outcome"] == "done"
    assert report["engine"]["name"] == "spark"
    assert [demo.count_differences(table) for table in tables] == [0, 0]
    for table in report["tables"]:
        assert len(table["shards"]) == demo.SHARDS
        assert {s["to_generation"] for s in table["shards"]} == {demo.GENERATIONS}

    again = submit(master, *(t.uri for t in tables), "--json")
    assert again.returncode == 0, again.stderr[-3000:]
    assert json.loads(again.stdout)["outcome"] == "nothing_to_do"
    assert json.loads(again.stdout)["engine"]["name"] == "none"


def test_a_backfill_of_two_tables_side_by_side(master: str, tmp_path: Path) -> None:
    tables = [demo.make_table(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 2))]
    ran = submit(master, *(t.uri for t in tables), "--json", job="backfill")
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(ran.stdout)
    assert (report["outcome"], report["engine"]["name"]) == ("done", "spark")
    for table in report["tables"]:
        assert table["backlog"]["generations"] == demo.SHARDS * demo.GENERATIONS
        assert [job["outcome"] for job in table["jobs"]] == ["done", "done"]
    assert [demo.count_differences(table) for table in tables] == [0, 0]
