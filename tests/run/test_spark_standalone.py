"""Jobs through spark-submit, on a standalone master and worker on loopback.

Executors run a Python that lacks memwal.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from memwal import demo

pytestmark = [pytest.mark.nightly, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
UP_SECONDS = 90


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# As memwal's own local sessions have them: these JVMs end before they could gain from more.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment(python: Path | None = None) -> dict[str, str]:
    """Of processes around a job, with its executors' Python."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    return {
        **kept,
        **({"PYSPARK_PYTHON": str(python)} if python else {}),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
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
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
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


def make_python(folder: Path, *lacking: str) -> Path:
    """An environment with what this one has installed, but for memwal, pyspark and `lacking`."""
    venv.create(folder, symlinks=True)
    (there,) = folder.glob("lib/python*/site-packages")
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(
            word in installed.name for word in ("memwal", "pyspark", "__pycache__", *lacking)
        ):
            (there / installed.name).symlink_to(installed)
    python = folder / "bin" / "python"
    for module in ("memwal", *lacking):
        tried = subprocess.run(
            [python, "-Ic", f"import {module}"], check=False, capture_output=True
        )
        assert b"ModuleNotFoundError" in tried.stderr
    return python


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_python(tmp_path_factory.mktemp("python") / "env")


CONFS = (
    "spark.executor.memory=1g",
    "spark.driver.host=127.0.0.1",
    "spark.ui.enabled=false",
    f"spark.executor.extraJavaOptions={JVM}",
)
FLAGS = [flag for pair in CONFS for flag in ("--conf", pair)]


def run(program: str, *words: str, python: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(Path(sys.executable).with_name(program)), *words],
        capture_output=True, text=True, timeout=240, env=environment(python), check=False,
    )  # fmt: skip


def test_merge_on_a_standalone_cluster(master: str, python: Path, tmp_path: Path) -> None:
    tables = [demo.make_table(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 2))]
    assert all(demo.count_differences(table) > 0 for table in tables)
    report_file = tmp_path / "report.json"
    spark = ("--master", master, *FLAGS, str(ROOT / "jobs" / "merge.py"))
    words = (*(t.uri for t in tables), "--json", "--report", str(report_file))
    ran = run("spark-submit", *spark, *words, python=python)
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(report_file.read_text())
    assert json.loads(ran.stdout) == report
    assert report["outcome"] == "done"
    assert report["engine"]["name"] == "spark"
    assert [demo.count_differences(table) for table in tables] == [0, 0]
    for table in report["tables"]:
        assert len(table["shards"]) == demo.SHARDS
        assert {s["to_generation"] for s in table["shards"]} == {demo.GENERATIONS}


def test_executors_run_a_packed_environment(master: str, python: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as packed:
        packed.add(python.parents[1], arcname=".")
    table = demo.make_table(tmp_path / "t", 1)
    ran = run(
        "memwal", "submit", "merge", table.uri, "--master", master, *FLAGS,
        "--archives", str(tmp_path / "env.tar.gz"), "--json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout)["engine"]["name"] == "spark"
    assert demo.count_differences(table) == 0


def test_executors_that_lack_a_library_are_told_before_anything_is_merged(
    master: str, tmp_path: Path
) -> None:
    """Without spark-submit too, memwal is sent: it is not among what is missing."""
    poor = make_python(tmp_path / "env", "lance", "obstore")
    table = demo.make_table(tmp_path / "t", 1)
    before = demo.count_differences(table)
    words = ("merge", table.uri, "--engine", "spark", "--master", master, "--json")
    ran = run("memwal", *words, python=poor)
    assert ran.returncode == 7, ran.stderr[-3000:]
    told = json.loads(ran.stdout)["error"]
    assert f"(Python {poor}) lacks lance, obstore (pip install pylance obstore)" in told
    assert "Traceback" not in ran.stderr
    assert demo.count_differences(table) == before
