"""Runs a job of the installed memwal through spark-submit."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

from memwal.errors import EXIT_CANCELLED, Unsupported, Usage
from memwal.options import Option

PACKAGE = Path(__file__).parents[1]
APPLICATION = PACKAGE / "cli" / "application.py"
"""The script that spark-submit runs; it is in the package, so no checkout is needed."""
SHIPPED = "memwal.zip"
"""The name under which the package is shipped to the executors."""

# The jobs that can use Spark.
JOBS = (
    "merge",
    "index-catchup",
    "snapshot",
    "garbage",
    "compaction",
    "maintain",
    "ingest",
    "backfill",
)


@dataclass(frozen=True, kw_only=True)
class SparkSubmit:
    """A job for spark-submit. `arguments` are what follows the job's name on its command line."""

    job: str = ""
    arguments: Sequence[str] = ()
    master: Annotated[str | None, Option(meaning="Spark master.", metavar="TEXT")] = None
    deploy_mode: Annotated[
        Literal["client", "cluster"] | None,
        Option(
            meaning="Where the driver runs. In client mode, the default, the exit code is the "
            "job's."
        ),
    ] = None
    conf: Annotated[Sequence[str], Option(meaning="A Spark property.", metavar="K=V")] = ()
    properties_file: Annotated[
        str | None,
        Option(meaning="A file of Spark properties; use it for secrets.", metavar="FILE"),
    ] = None
    py_files: Annotated[
        Sequence[str],
        Option(
            meaning="Added to the executors' path, as this memwal is unless the master is local.",
            metavar="FILE",
        ),
    ] = ()
    archives: Annotated[
        str | None,
        Option(
            meaning="A packed environment (venv-pack, conda-pack) whose Python executors are to "
            "run.",
            metavar="FILE[#NAME]",
        ),
    ] = None
    dry_run: Annotated[
        bool, Option(meaning="Print the command and run nothing; memwal.zip is not made.")
    ] = False

    @property
    def is_driver_here(self) -> bool:
        """Whether the driver runs on this host."""
        return self.deploy_mode != "cluster"

    def check(self) -> None:
        """Raise Usage or Unsupported for what Spark would fail at with a Java trace."""
        kind = (self.master or "").partition("://")[0]
        if kind == "sc":
            raise Unsupported(
                "MW-E05", f"--master {self.master}: jobs need a driver, not Spark Connect"
            )
        if kind == "spark" and not self.is_driver_here:
            raise Unsupported(
                "MW-E09", "--deploy-mode cluster: Spark has none for Python on standalone clusters"
            )
        if wheels := [file for file in self.py_files if file.endswith(".whl")]:
            raise Usage(f"--py-files {wheels[0]}: Spark wants .zip, and ignores wheels: rename it")

    def check_archive(self) -> None:
        """Raise Usage for a local archive that does not exist."""
        file = (self.archives or "").partition("#")[0]
        if file and ":" not in file and not Path(file).is_file():
            raise Usage(f"--archives {file}: no such file")

    def command(self, program: str) -> list[str]:
        """The command line. `conf` goes last, so that it wins."""
        words = [program, "--name", f"memwal {self.job}"]
        for option, value in (
            ("--master", self.master),
            ("--deploy-mode", self.deploy_mode),
            ("--properties-file", self.properties_file),
            ("--py-files", ",".join(self.py_files)),
            *self._environment(),
            *(("--conf", pair) for pair in self.conf),
        ):
            if value:
                words += [option, value]
        if self.properties_file:
            words.append("--load-spark-defaults")  # which a file would replace
        return [*words, str(APPLICATION), self.job, *self.arguments]

    def _environment(self) -> Iterator[tuple[str, str]]:
        """The options that run executors, and a driver on the cluster, with `archives`' Python.

        Spark unpacks an archive below each process's working directory, under the name after `#`.
        """
        if not self.archives:
            return
        file, _, name = self.archives.partition("#")
        name = name or "environment"
        yield "--archives", f"{file}#{name}"
        yield "--conf", f"spark.pyspark.python=./{name}/bin/python"
        if self.is_driver_here:
            yield "--conf", f"spark.pyspark.driver.python={sys.executable}"


def find_spark_submit(environment: Mapping[str, str] = os.environ) -> str:
    """The path of spark-submit: under SPARK_HOME, beside this Python, or on PATH.

    Raises Unsupported when there is none.
    """
    if home := environment.get("SPARK_HOME"):
        return str(Path(home) / "bin" / "spark-submit")
    beside = Path(sys.executable).with_name("spark-submit")
    found = str(beside) if beside.exists() else shutil.which("spark-submit")
    if found is None:
        raise Unsupported(
            "MW-E04",
            "there is no spark-submit: pip install 'lance-memwal[spark]', or set SPARK_HOME",
        )
    return found


def is_local(master: str | None) -> bool:
    """Whether the master is local, so that the driver itself is the executor."""
    return bool(re.match(r"local(\[|$)", master or ""))


def zip_package(folder: Path) -> Path:
    """Zip the installed memwal for `--py-files`; returns the file."""
    target = folder / SHIPPED
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(PACKAGE.parent))
    return target


def run_command(command: Sequence[str], *, is_driver_here: bool = True) -> int:
    """Run spark-submit to its end; returns its exit code, in client mode the application's.

    A signal that would end this process is passed on to both the JVM and the driver. Where this
    process leads a session, they stay in it, so that whoever ends that ends all of it.
    """
    # A driver on this host must be a Python in which memwal is installed. With a driver on the
    # cluster, Spark would use the same path there, and its script would look for Spark with the
    # executors' Python.
    variables = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if not is_driver_here:
        found = importlib.util.find_spec("pyspark")
        variables = {"SPARK_HOME": str(Path(found.origin).parent)} if found and found.origin else {}
    variables.update(os.environ)
    leads = os.getsid(0) == os.getpid()
    process = subprocess.Popen(command, env=variables, start_new_session=not leads)
    group = os.getpgrp() if leads else process.pid
    cancelled = False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal cancelled
        if cancelled and leads:
            return  # it is this process's own signal to its group
        cancelled = True
        os.killpg(group, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, pass_on)
    code = process.wait()
    return EXIT_CANCELLED if cancelled else code
