"""The `[memwal]` section of Airflow's configuration, and the DAG settings of `memwal.toml`."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from airflow.sdk.configuration import conf

from memwal.config import Config, load_config

SECTION = "memwal"


@dataclass(frozen=True, kw_only=True)
class AirflowSettings:
    """Where the jobs' environment is, and how the page looks at the tables.

    `command` is the memwal executable in the jobs' environment, `jobs_directory` where spark-submit
    finds the job scripts (None: the one that memwal brings along). `run_directory` holds
    what a job that is running in the background tells (log, report, exit code); workers and
    triggerers have to share it for deferrable operators.
    """

    command: str
    config_file: str | None
    jobs_directory: str | None
    conn_id: str
    run_directory: str
    page_refresh_seconds: float
    page_timeout_seconds: float


def read_settings() -> AirflowSettings:
    """The settings as they are now. Environment variables `AIRFLOW__MEMWAL__*` set them too.

    Relative paths are those of the process that asks; better give absolute ones.
    """
    default_directory = Path(tempfile.gettempdir()) / f"memwal-airflow-{os.getuid()}"
    command = conf.get(SECTION, "command", fallback="memwal")
    config_file = conf.get(SECTION, "config_file", fallback="") or os.environ.get("MEMWAL_CONFIG")
    run_directory = conf.get(SECTION, "run_directory", fallback="") or default_directory
    return AirflowSettings(
        # A bare name is looked for on PATH.
        command=str(Path(command).absolute()) if os.sep in command else command,
        config_file=str(Path(config_file).absolute()) if config_file else None,
        jobs_directory=conf.get(SECTION, "jobs_directory", fallback="") or None,
        conn_id=conf.get(SECTION, "conn_id", fallback="memwal_default"),
        run_directory=str(Path(run_directory).absolute()),
        page_refresh_seconds=conf.getfloat(SECTION, "page_refresh_seconds", fallback=30.0),
        page_timeout_seconds=conf.getfloat(SECTION, "page_timeout_seconds", fallback=60.0),
    )


def read_dag_config() -> Config:
    """The memwal configuration that the DAGs are built from: of a file that is named, else empty.

    Raises Usage; the file is read once in each state that it is in, however many DAG files ask.
    """
    file = read_settings().config_file
    stamp = Path(file).stat().st_mtime_ns if file and Path(file).exists() else 0
    return _read(file, stamp)


@lru_cache(maxsize=4)
def _read(file: str | None, stamp: int) -> Config:
    return read_config(file)


def read_config(file: str | None) -> Config:
    """The configuration in `file`; an empty one for None. Raises Usage.

    A `memwal.toml` in whatever folder Airflow happens to run in decides nothing.
    """
    return load_config(file) if file else Config()
