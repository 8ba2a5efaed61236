"""`memwal submit`: the command that it builds, and a job that an installed memwal runs by it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pyspark
import pytest
from typer.testing import CliRunner

from memwal import demo
from memwal.cli.app import app
from memwal.errors import Unsupported
from memwal.run.submit import APPLICATION, JOBS, find_spark_submit, zip_package

ROOT = Path(__file__).parents[2]


def words(*arguments: str) -> list[str]:
    """The command that `memwal submit` prints, after the program and its name."""
    done = CliRunner().invoke(app, ["submit", "--dry-run", *arguments])
    assert done.exit_code == 0, done.output
    program, *rest = shlex.split(done.stdout)
    assert program.endswith("spark-submit")
    return rest


def test_options_go_where_they_belong() -> None:
    spark = ["--master", "local[1]", "--properties-file", "p.conf", "--conf", "a=b c"]
    job = ["t", "--until-generation", "3", "--json"]
    defaults = "--load-spark-defaults"  # which the file would replace
    expected = ["--name", "memwal merge", *spark, defaults, str(APPLICATION), "merge", *job]
    assert words("merge", *job, *spark) == expected
    assert words(*spark, "merge", *job) == expected


def test_an_option_of_both_goes_to_the_job_after_two_dashes() -> None:
    assert words("merge", "t", "--", "--dry-run")[-2:] == ["t", "--dry-run"]


def test_memwal_goes_along_unless_the_executors_are_this_process() -> None:
    cluster = ["--master", "spark://host:7077"]
    assert words("merge", "t", *cluster)[4:6] == ["--py-files", "memwal.zip"]
    assert "--py-files" not in words("merge", "t", "--master", "local[4]")


def test_an_archive_has_the_executors_python_and_in_cluster_mode_the_driver_s() -> None:
    here = words("merge", "t", "--master", "local", "--archives", "e.tar.gz")
    assert here[4:-3] == [
        "--archives", "e.tar.gz#environment",
        "--conf", "spark.pyspark.python=./environment/bin/python",
        "--conf", f"spark.pyspark.driver.python={sys.executable}",
    ]  # fmt: skip
    there = words("merge", "t", "--deploy-mode", "cluster", "--archives", "e.tar.gz#e")
    assert there[2:-3] == [
        "--deploy-mode", "cluster", "--py-files", "memwal.zip", "--archives", "e.tar.gz#e",
        "--conf", "spark.pyspark.python=./e/bin/python",
    ]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("here", [True, False])
def test_only_a_driver_on_this_host_is_told_of_this_python(here: bool) -> None:
    code = f"""from memwal.run.submit import run_command
run_command(["sh", "-c", "echo $PYSPARK_DRIVER_PYTHON $SPARK_HOME"], is_driver_here={here})"""
    set_here = ("PYSPARK_DRIVER_PYTHON", "SPARK_HOME")
    variables = {k: v for k, v in os.environ.items() if k not in set_here}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    spark_home = str(Path(pyspark.__file__).parent)
    assert done.stdout.strip() == (sys.executable if here else spark_home)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["merges", "t"], "expected one of merge, "),
        (["merge", "t", "--py-files", "a-1.whl"], "--py-files a-1.whl: Spark wants .zip"),
        (["merge", "t", "--archives", "none.tgz#e"], "--archives none.tgz: no such file"),
        (["merge", "t", "--bogus"], "No such option: --bogus"),
        (["garbage", "t", "--grace", "5 minutes"], "--grace '5 minutes': expected a number and"),
        (["merge", "t", "--memory-max", "x"], "--memory-max 'x': expected bytes"),
        (["merge", "t", "--until-generation", "x"], "Invalid value for '--until-generation'"),
    ],
)
def test_a_wrong_request_starts_nothing(arguments: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["submit", *arguments])
    assert done.exit_code == 2
    assert told in done.output


@pytest.mark.parametrize(
    "arguments", [["--master", "sc://h"], ["--master", "spark://h", "--deploy-mode", "cluster"]]
)
def test_no_spark_could_run_it(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["submit", "merge", "t", *arguments, "--dry-run"])
    assert (done.exit_code, arguments[-2] in done.output) == (7, True)


def test_every_script_is_a_job_that_can_be_submitted() -> None:
    scripts = {file.stem.replace("_", "-") for file in (ROOT / "jobs").iterdir() if file.is_file()}
    assert scripts == set(JOBS)


def test_spark_home_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spark_submit({"SPARK_HOME": "/opt/spark"}) == "/opt/spark/bin/spark-submit"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="SPARK_HOME"):
        find_spark_submit({})


def test_what_is_shipped_is_all_of_memwal(tmp_path: Path) -> None:
    shipped = zip_package(tmp_path)
    with zipfile.ZipFile(shipped) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"memwal"}
    assert {"memwal/jobs/merge/job.py", "memwal/py.typed"} <= set(names)
    assert not any("__pycache__" in name for name in names)
    assert zipimporter(str(shipped)).find_spec("memwal") is not None


@pytest.mark.nightly
@pytest.mark.spark
def test_an_installed_memwal_needs_no_checkout(tmp_path: Path) -> None:
    """It lies in a folder of packages; the user's own folder has a `jobs/` in it."""
    packages, here = tmp_path / "packages", tmp_path / "here"
    shutil.copytree(ROOT / "memwal", packages / "memwal")
    (here / "jobs").mkdir(parents=True)
    (here / "jobs" / "__init__.py").write_text("raise SystemExit('not ours')")
    table = demo.make_table(here / "t", 1)

    done = subprocess.run(
        [
            sys.executable, "-m", "memwal", "submit", "merge", "t", "missing", "--master",
            "local[1]", "--py-files", str(zip_package(tmp_path)),
            "--conf", "spark.ui.enabled=false", "--json",
            "--report", "report.json",
        ],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip

    assert done.returncode == 6, done.stderr[-3000:]  # as `memwal merge` of these two
    report = json.loads((here / "report.json").read_text())
    assert json.loads(done.stdout) == report
    assert [found["outcome"] for found in report["tables"]] == ["done", "failed"]
    assert report["engine"]["name"] == "spark"
    assert demo.count_differences(table) == 0
