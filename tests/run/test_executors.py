"""What is said of executors that can't do a unit's work."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import memwal
from memwal.errors import JOBS_MODULES
from memwal.jobs.merge.job import MergeOptions
from memwal.jobs.merge.report import MergeTableReport
from memwal.jobs.merge.request import MergeRequest
from memwal.report import JobReport
from memwal.run.engines import executors
from memwal.run.engines.executors import NEEDED, explain_failure, find_fault, find_versions

PROJECT = Path(__file__).parents[2] / "pyproject.toml"

# As Spark 4.3 tells them; the stacks of Java are left out.
CANNOT_RUN = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 0.0 failed "
    "4 times, most recent failure: Lost task 1.3 in stage 0.0 (TID 6) (10.0.0.5 executor 0): "
    'java.io.IOException: Cannot run program "/opt/env/bin/python": error=2, No such file'
)
OTHER_PYTHON = (
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in "
    "worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run"
)
NO_OPERATOR = """An exception was thrown from the Python worker:
    return cloudpickle.loads(obj, encoding=encoding)
ModuleNotFoundError: No module named 'memwal.run'; 'memwal' is not a package"""
NO_DAEMON = """org.apache.spark.SparkException:
Error from python worker:
  Traceback (most recent call last):
    File "/pyspark.zip/pyspark/errors/error_classes.py", line 26, in <module>
  AttributeError: module 'importlib.resources' has no attribute 'files'
PYTHONPATH was:"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CANNOT_RUN, "can't run /opt/env/bin/python"),
        (OTHER_PYTHON, "executors run Python 3.12 and the driver Python 3.11"),
        (NO_OPERATOR, "executors lack memwal"),
        (NO_DAEMON, "AttributeError: module 'importlib.resources' has no attribute 'files'"),
    ],
)
def test_a_python_that_could_not_begin(text: str, told: str) -> None:
    assert told in str(explain_failure(text))


def test_other_failures_are_left_as_they_are() -> None:
    assert explain_failure("Python worker exited unexpectedly") is None


def test_a_process_like_the_driver_has_no_fault() -> None:
    assert find_fault({**find_versions()}) is None


@pytest.mark.parametrize("name", ["memwal", "pylance"])
def test_another_version_is_told_with_both(name: str) -> None:
    fault = str(find_fault({**find_versions(), name: "0.7"}))
    assert f"has {name} {find_versions()[name]}, the driver {name} 0.7" in fault
    assert ("--allow-untested-lance" in fault) == (name == "pylance")


def test_what_is_missing_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {"memwal": "lance-memwal", "not_there": "a-package", "not.there": "b-package"}
    monkeypatch.setattr(executors, "NEEDED", needed)
    told = "lacks not_there, not.there (pip install a-package b-package)"
    assert told in str(find_fault({}))


@pytest.mark.nightly
def test_all_that_is_missing_is_told_at_once_by_a_process_that_has_nothing() -> None:
    code = Path(executors.__file__).read_text() + "\nprint(find_fault({}))"
    done = subprocess.run(
        [sys.executable, "-ISc", code], capture_output=True, text=True, check=True
    )
    assert f"(Python {sys.executable}) lacks {', '.join(NEEDED)} (pip install " in done.stdout


def test_what_executors_need_is_what_jobs_depend_on() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["jobs"]]
    packages = {text.partition(">")[0] for text in needed}
    assert set(NEEDED.values()) - {"lance-memwal"} == packages - {"typer"}


def test_modules_of_the_extra_are_known() -> None:
    """With those that pylance and boto3 bring, and that memwal imports."""
    needed = {module.partition(".")[0] for module in NEEDED} - {"memwal", "pydantic", "rich"}
    assert needed | {"botocore", "lance_namespace"} == JOBS_MODULES


# What a command line needs, and what tasks unpickle: their units, requests and writers.
ABSENT = "import sys; sys.modules.update(dict.fromkeys(['typer', 'click']))\n"
UNITS = (
    "memwal.jobs.merge.job",
    "memwal.jobs.garbage.unit",
    "memwal.jobs.compaction.store",
    "memwal.jobs.index_catchup.store",
    "memwal.jobs.snapshot.store",
    "memwal.ingest.spark.staging",
    "memwal.ingest.spark.writer",
    "memwal.run.engines.spark",
    "memwal.read.spark",
)


@pytest.mark.nightly
def test_what_tasks_import_needs_no_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{ABSENT}import {', '.join(UNITS)}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_a_request_from_python_is_the_job_s_own_where_it_is_unpickled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[object] = []

    def run_merge(options: MergeOptions, progress: object) -> JobReport:
        sent.append(options.request)
        table = MergeTableReport(table="t", outcome="nothing_to_do")
        return JobReport(job="merge", outcome="nothing_to_do", tables=(table,))

    monkeypatch.setattr("memwal.jobs.merge.job.run_merge", run_merge)
    memwal.open_table(str(tmp_path / "t")).merge(until_generation=3)
    assert sent == [MergeRequest(until_generation=3)]
    pickled = repr(pickle.dumps(sent[0]))
    done = subprocess.run(
        [sys.executable, "-c", f"{ABSENT}import pickle; print(pickle.loads({pickled}))"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("MergeRequest("), done.stderr
