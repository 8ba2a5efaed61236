"""Runs a job to its end, in a worker or in the triggerer, and judges what came of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.redaction import hide_secrets
from memwal_airflow.hooks.spark_connection import SparkTarget
from memwal_airflow.operators.outcomes import judge, summarize
from memwal_airflow.processes.process import Runner, Say, read_messages

_REPORT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """A job that is asked for, as it also travels to the triggerer: it holds no secrets.

    `words` are the options, tables and sources; `run_id` is the id that memwal gives its run, and
    `task` the Airflow task that it belongs to (see `describe_task`). After `seconds_max` the job is
    told to end (None: never).
    """

    job: str
    words: list[str]
    conn_id: str
    spark_conn_id: str | None
    run_id: str
    task: dict[str, Any]
    seconds_max: float | None = None


def run_job(
    order: JobOrder, jobs: JobsEnvironment, target: SparkTarget | None, runner: Runner, say: Say
) -> dict[str, Any]:
    """Run a job to its end, and return {"verdict", "text", "summary"}; its log goes to `say`."""
    last = {"line": "", "error": ""}

    def hear(line: str) -> None:
        line = hide_secrets(line, jobs.secrets)
        say(line)
        for message in read_messages(line):
            # Spark prints more lines at its end, even after a job that did not begin.
            is_error = message.lower().startswith("error: ")
            last["error" if is_error else "line"] = message

    with TemporaryDirectory(prefix="memwal-") as folder:
        report_file = Path(folder) / "report.json"
        how = [order.job] if target is None else target.list_words(order.job, Path(folder, "conf"))
        words = ["--report", str(report_file), *jobs.config_words, *order.words]
        argv = [jobs.command, *how, *words]
        with log_group(say, "The job's command"):
            say(hide_secrets(" ".join(argv), jobs.secrets))
        variables = jobs.variables(run_id=order.run_id, task=order.task)
        with log_group(say, "The job's log"):
            ended = runner.run(argv, variables, order.seconds_max or math.inf, 0, hear)
        report = _read_report(report_file)
    verdict, text = judge(ended, report, last["error"] or last["line"], jobs.secrets)
    return {
        "verdict": verdict.value,
        "text": text,
        "summary": summarize(report, jobs.secrets),
    }


@contextmanager
def log_group(say: Say, name: str) -> Iterator[None]:
    """Have Airflow's page fold the lines logged in between into a group of this name."""
    say(f"::group::{name}")
    try:
        yield
    finally:
        say("::endgroup::")


def _read_report(file: Path) -> Mapping[str, Any] | None:
    """Return the job's report; None if there is none, or if it is not a JSON object."""
    try:
        if file.stat().st_size > _REPORT_BYTES_MAX:
            return None
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
