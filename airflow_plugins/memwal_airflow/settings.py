"""The `[memwal]` section of Airflow's configuration, and the DAG settings of `memwal.toml`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from airflow.sdk.configuration import conf

from memwal.config import Config, load_config

SECTION = "memwal"


@dataclass(frozen=True, kw_only=True)
class AirflowSettings:
    """Where the jobs' environment is, and how the page looks at the tables.

    `command` is the memwal executable in the jobs' environment.
    """

    command: str
    config_file: str | None
    conn_id: str
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
    return AirflowSettings(
        # A bare name is looked for on PATH.
        command=str(Path(command).absolute()) if os.sep in command else command,
        config_file=str(Path(config_file).absolute()) if config_file else None,
        conn_id=read("conn_id", "memwal_default"),
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
