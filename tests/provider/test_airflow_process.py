"""A command that Airflow runs: what it is told and says, and that it ends with its task."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.query import ERROR_CHARACTERS_MAX, NoAnswer, query
from memwal_airflow.hooks.spark_connection import SparkTarget, read_spark_target
from memwal_airflow.operators.runs import JobOrder, run_job
from memwal_airflow.processes.process import Runner

from memwal.config import AIRFLOW_TASK_VARIABLE, RUN_ID_VARIABLE, STORAGE_OPTIONS_VARIABLE
from memwal.errors import Usage

pytestmark = pytest.mark.integration

ENVIRONMENT = {"PATH": os.environ["PATH"]}
SECRET = "hunter2"
TASK = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "try_number": 1}
ORDER = JobOrder(
    job="merge",
    words=["--", "orders"],
    conn_id="c",
    spark_conn_id=None,
    run_id="d/r/t/1",
    task=TASK,
)
FORGED, ESCAPED = "\tat x \x1b[31m\u202e", r"    at x \x1b[31m\u202e"


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], JobsEnvironment]:
    """In memwal's place: a shell script, which knows a secret."""

    def make(script: str) -> JobsEnvironment:
        file = tmp_path / "memwal"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        options = {"aws_secret_access_key": SECRET}
        secrets = frozenset(options)
        return JobsEnvironment(command=str(file), storage_options=options, secret_names=secrets)

    return make


def run(
    jobs: JobsEnvironment, target: SparkTarget | None = None
) -> tuple[dict[str, Any], list[str]]:
    """What comes of a merge of `orders`, and what its task's log says."""
    said: list[str] = []
    return run_job(ORDER, jobs, target, Runner(), said.append), said


def test_a_job_knows_its_task_and_its_store_and_nothing_of_airflow(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "x")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    jobs = program(f"env > {tmp_path}/known; echo '{FORGED}'; echo {SECRET} $3; echo '{{}}' > $3")
    event, said = run(jobs)
    assert event == {
        "verdict": "success",
        "text": "None",
        "summary": {**event["summary"], "tables": []},
    }
    known = dict(line.split("=", 1) for line in (tmp_path / "known").read_text().splitlines())
    assert json.loads(known[STORAGE_OPTIONS_VARIABLE]) == jobs.storage_options
    assert (known[RUN_ID_VARIABLE], json.loads(known[AIRFLOW_TASK_VARIABLE])) == ("d/r/t/1", TASK)
    assert {"PYTHONPATH", "AIRFLOW__CORE__FERNET_KEY"}.isdisjoint(known)
    (report,) = (word for word in said[1].split() if word.endswith("report.json"))
    assert said == [
        "::group::The job's command",
        f"{jobs.command} merge --report {report} --config /dev/null -- orders",
        *("::endgroup::", "::group::The job's log", ESCAPED, f"*** {report}", "::endgroup::"),
    ]
    assert not Path(report).parent.exists()


@pytest.mark.parametrize(
    ("script", "verdict", "text"),
    [
        ("echo 'error: no such command'; echo bye; exit 2", "fail", "exit code 2: error: no such"),
        ("echo bye; exit 1", "retry", "exit code 1: bye"),
        ("kill -9 $$", "retry", "exit code -9: it left neither report nor log"),
        ("true", "retry", "left no report that can be read"),
        ("echo [] > $3", "retry", "left no report that can be read"),
        ("""echo '{"outcome": "held", "job": "merge"}' > $3; exit 4""", "held", "exit code 4"),
        # What it leaves behind holds its log open, and ends with it.
        ("sleep 600 & echo '{}' > $3", "success", "None"),
    ],
)
def test_what_comes_of_it(program: Any, script: str, verdict: str, text: str) -> None:
    event, _ = run(program(script))
    assert (event["verdict"], text in event["text"]) == (verdict, True), event


def test_a_job_out_of_time_still_tells_how_far_it_came(program: Any, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    tell = """echo '{"job": "merge", "outcome": "partial"}' > $report; exit 9"""
    wait = f"touch {ready}; sleep 600 & wait"
    jobs = program(f"report=$3; tell() {{ {tell}; }}; trap tell TERM; {wait}")
    began = iter([0.0])  # when it begins, however soon the program is ready
    runner = Runner(monotonic=lambda: next(began, 100.0 if ready.exists() else 0.0))
    order = replace(ORDER, seconds_max=60.0)
    event = run_job(order, jobs, None, runner, lambda line: None)
    assert (event["verdict"], event["text"]) == ("retry", "the job had not ended within 60 s")
    assert event["summary"]["outcome"] == "partial"


def test_a_program_that_is_not_there_is_named() -> None:
    event, _ = run(JobsEnvironment(command="/no/memwal"))
    assert event["verdict"] == "retry"
    assert event["text"].startswith("can't start /no/memwal: ")


def test_a_job_that_is_told_to_end_has_time_to_do_so(tmp_path: Path) -> None:
    script = (
        f"trap 'echo well > {tmp_path}/end; exit 130' TERM; touch {tmp_path}/up; sleep 600 & wait"
    )
    runner = Runner()
    timer = Timer(0, lambda: (until((tmp_path / "up").exists), runner.close()))
    timer.start()
    ended = runner.run(["sh", "-c", script], ENVIRONMENT, 600, 0, lambda line: None)
    timer.join()
    assert (ended.exit_code, ended.why) == (None, "was told to end")
    assert (tmp_path / "end").read_text() == "well\n"
    assert not runner.run(["true"], ENVIRONMENT, 600, 0).started


@pytest.mark.parametrize("where", ["in the worker", "in the triggerer"])
def test_a_job_ends_with_the_task_whose_process_is_killed(tmp_path: Path, where: str) -> None:
    job = ["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"]
    call = f"run({job!r}, {ENVIRONMENT!r}, 600, 0, print)"
    asked = (
        f"Runner().{call}"
        if where == "in the worker"
        else f"asyncio.run(run_apart(lambda r: r.{call}))"
    )
    code = f"import asyncio; from memwal_airflow.processes.process import *; {asked}"
    task = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    pid = tmp_path / "pid"
    until(lambda: pid.exists() and pid.read_text().strip())
    task.send_signal(signal.SIGKILL)
    task.wait()
    until(lambda: not is_running(int(pid.read_text())))


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_question_has_a_bound(program: Any) -> None:
    runner = Runner()
    late = runner.run(["sleep", "600"], ENVIRONMENT, 0.1, 10)
    assert late.why == "no answer within 0.1 s"
    much = runner.run(["cat", "/dev/zero"], ENVIRONMENT, 600, 1 << 20)
    assert much.why == "answered with more than 1 MiB"
    told = runner.run(["sh", "-c", "echo out; echo err >&2; exit 3"], ENVIRONMENT, 600, 10)
    assert (told.stdout, told.stderr, told.exit_code) == (b"out\n", b"err\n", 3)


async def ask(jobs: JobsEnvironment) -> Any:
    return await query(jobs, "status", ["orders"], seconds_max=60)


def test_an_answer_is_a_document_with_texts_of_one_line(program: Any) -> None:
    answer = asyncio.run(ask(program("""printf '{"tables": [{"error": "a\\\\nb"}, 7]}'; exit 6""")))
    assert (answer.tables, answer.exit_code) == ([{"error": r"a\nb"}], 6)
    filler = "x" * (ERROR_CHARACTERS_MAX - 3)
    with pytest.raises(NoAnswer) as caught:
        asyncio.run(ask(program(f"printf '{SECRET}{filler}\\nend' >&2; exit 1")))
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith(r"\nend")
    assert "r2" not in str(caught.value)


def test_a_spark_connection_becomes_words_of_submit(tmp_path: Path) -> None:
    class Connection:
        conn_id, host, port = "spark", "host", 7077
        extra_dejson: Any = {
            "deploy-mode": "client",
            "namespace": "lake",
            "keytab": "/k",
            "conf": {"spark.a b": "x=1\ny", "spark.s3.secret": SECRET},
        }

    found = read_spark_target(Connection())  # type: ignore[arg-type]
    words = found.list_words("merge", tmp_path / "conf")
    file = str(tmp_path / "conf")
    assert words == [
        "submit",
        "--master",
        "spark://host:7077",
        "--properties-file",
        file,
        "merge",
        "--",
    ]
    assert (tmp_path / "conf").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "conf").read_text().splitlines() == [
        "spark.kubernetes.namespace=lake",
        "spark.kerberos.keytab=/k",
        "spark.a\\ b=x=1\\ny",
        f"spark.s3.secret={SECRET}",
    ]
    assert SECRET not in repr(found)
    Connection.extra_dejson = {"deploy-mode": "cluster"}
    with pytest.raises(Usage, match="use client mode"):
        read_spark_target(Connection())  # type: ignore[arg-type]
