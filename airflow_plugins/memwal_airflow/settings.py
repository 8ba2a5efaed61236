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
    finds the job scripts (None: the one that comes with memwal). `run_directory` holds the logs,
    reports and exit codes of running jobs; workers and triggerers have to share it for deferrable
    operators.
    """

    command: str
    config_file: str | None
    jobs_directory: str | None
    conn_id: str
    run_directory: str
    page_refresh_seconds: float
    page_timeout_seconds: float


def read_settings() -> AirflowSettings:
    """Read the current settings; environment variables `AIRFLOW__MEMWAL__*` set them too.

    Relative paths start in the process's current folder, so absolute ones are better.
    """

    def read(name: str, default: str = "") -> str:
        return conf.get(SECTION, name, fallback="") or default

    command = read("command", "memwal")
    config_file = read("config_file") or os.environ.get("MEMWAL_CONFIG")
    default_directory = f"{tempfile.gettempdir()}/memwal-airflow-{os.getuid()}"
    return AirflowSettings(
        # A bare name is looked for on PATH.
        command=str(Path(command).absolute()) if os.sep in command else command,
        config_file=str(Path(config_file).absolute()) if config_file else None,
        jobs_directory=read("jobs_directory") or None,
        conn_id=read("conn_id", "memwal_default"),
        run_directory=str(Path(read("run_directory", default_directory)).absolute()),
        page_refresh_seconds=conf.getfloat(SECTION, "page_refresh_seconds", fallback=30.0),
        page_timeout_seconds=conf.getfloat(SECTION, "page_timeout_seconds", fallback=60.0),
    )


def read_dag_config() -> Config:
    """Return the memwal configuration that DAGs are built from; empty if no file is named.

    Raises Usage. The file is read again only when it has changed, however many DAG files ask.
    """
    file = read_settings().config_file
    stamp = Path(file).stat().st_mtime_ns if file and Path(file).exists() else 0
    return _read(file, stamp)


@lru_cache(maxsize=4)
def _read(file: str | None, stamp: int) -> Config:
    return read_config(file)


def read_config(file: str | None) -> Config:
    """Read the configuration in `file`; an empty one for None. Raises Usage.

    A `memwal.toml` in the folder that Airflow happens to run in is ignored.
    """
    return load_config(file) if file else Config()
