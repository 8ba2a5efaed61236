"""Command lines and environments for processes in the jobs' environment.

Secrets travel in the environment only: a command line shows in process lists, logs and rendered
templates.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from memwal.config import (
    AIRFLOW_TASK_VARIABLE,
    RUN_ID_VARIABLE,
    STORAGE_OPTIONS_VARIABLE,
    name_variable,
)
from memwal.errors import Usage
from memwal_airflow.hooks.redaction import is_secret
from memwal_airflow.hooks.request import build_words
from memwal_airflow.settings import read_settings

_log = logging.getLogger(__name__)

# Fields of older connections. Which code runs, and on which tables, is up to Airflow's own
# configuration: the API server runs the command too, for whoever looks at the page.
IGNORED_FIELDS = ("command", "config_file", "jobs_directory")

# What is none of a job's business (Airflow's database, keys and connections), and what would
# bend its Python or Spark away from its own environment.
_WITHHELD_PREFIXES = ("AIRFLOW", "_AIRFLOW")
_WITHHELD = (
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SPARK_HOME", "PYSPARK_PYTHON"),
    *(RUN_ID_VARIABLE, AIRFLOW_TASK_VARIABLE),  # of what Airflow itself was started by
)
# Others' tables are looked at by the same command, and wait as long for its answer.
_LOOK_STORE_SECONDS_MAX = 10


@dataclass(frozen=True, kw_only=True)
class JobsEnvironment:
    """The environment that the jobs run in, with their configuration and the store's options.

    `storage_options` may hold secrets, those under `secret_names`; `repr` leaves them out.
    """

    command: str
    config_file: str | None = None
    jobs_directory: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_names: frozenset[str] = frozenset()

    def memwal(
        self, job: str, options: Sequence[str], tables: Sequence[str], sources: Sequence[str] = ()
    ) -> list[str]:
        """`memwal JOB OPTIONS -- TABLES SOURCES`, with the configuration file. Raises Usage."""
        return [self.command, job, *self.arguments(options, tables, sources)]

    def arguments(
        self, options: Sequence[str], tables: Sequence[str], sources: Sequence[str] = ()
    ) -> list[str]:
        """What follows the command's or the job script's name. Raises Usage.

        Without a configuration file an empty one is named: memwal would look for one in whatever
        folder the process happens to run in.
        """
        config_file = self.config_file or os.devnull
        return build_words([*options, "--config", config_file], tables, sources)

    def variables(
        self,
        base: Mapping[str, str] | None = None,
        *,
        run_id: str | None = None,
        task: Mapping[str, Any] | None = None,
    ) -> dict[str, str]:
        """The processes' environment variables; `run_id` is what memwal is to call its run, `task`
        whose it is (`describe_task`).
        """
        found = os.environ if base is None else base
        variables = {
            name: value
            for name, value in found.items()
            if not name.startswith(_WITHHELD_PREFIXES) and name not in _WITHHELD
        }
        if self.storage_options:
            variables[STORAGE_OPTIONS_VARIABLE] = json.dumps(dict(self.storage_options))
        if run_id is not None:
            variables[RUN_ID_VARIABLE] = run_id
        if task is not None:
            variables[AIRFLOW_TASK_VARIABLE] = json.dumps(dict(task))
        return variables

    def look_variables(self) -> dict[str, str]:
        """The variables of a process that only looks, and waits for no store as long as a job."""
        return {
            **self.variables(),
            name_variable("store_seconds_max"): str(_LOOK_STORE_SECONDS_MAX),
        }

    @property
    def secrets(self) -> list[str]:
        """What must not show anywhere."""
        return [self.storage_options[name] for name in sorted(self.secret_names)]

    def find_executable(self, name: str) -> str:
        """Another executable of the same environment, or its bare name for PATH to find."""
        beside = self._folder() / name
        return str(beside) if beside.exists() else name

    def _folder(self) -> Path:
        return Path(shutil.which(self.command) or self.command).parent

    def find_application(self, job: str) -> list[str]:
        """What spark-submit runs the job by: a script, and its first words. Raises Usage."""
        if self.jobs_directory:
            return [f"{self.jobs_directory.rstrip('/')}/{job.replace('-', '_')}.py"]
        return [_application(str(self._folder() / "python")), job]


@lru_cache(maxsize=16)
def _application(python: str) -> str:
    """The script that memwal brings along. Raises Usage when that Python has no memwal."""
    code = "from memwal.run.submit import APPLICATION; print(APPLICATION)"
    try:
        found = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Usage(
            f"{python} can't say where memwal's Spark application is ({error}). Set [memwal] "
            "jobs_directory, or [memwal] command to an absolute path"
        ) from None
    return found.stdout.strip()


def read_environment(
    extra: Mapping[str, Any],
    *,
    host: str | None = None,
    login: str | None = None,
    password: str | None = None,
    conn_id: str = "",
) -> JobsEnvironment:
    """The store and its credentials from a connection, the rest from `[memwal]`. Raises Usage."""
    settings = read_settings()
    _warn_of_ignored(conn_id, tuple(name for name in IGNORED_FIELDS if extra.get(name)))
    options = _storage_options(extra.get("storage_options"))
    # Airflow masks the fields of `extra` whose names sound like it: hence a second one.
    secret_options = _storage_options(extra.get("secret_storage_options"))
    options.update(secret_options)
    if host:
        options.setdefault("aws_endpoint", host)
        if host.startswith("http://"):
            options.setdefault("allow_http", "true")
    if login:
        options["aws_access_key_id"] = login
    if password:
        options["aws_secret_access_key"] = password
    return JobsEnvironment(
        command=settings.command,
        config_file=settings.config_file,
        jobs_directory=settings.jobs_directory,
        storage_options=options,
        secret_names=frozenset(
            name for name in options if name in secret_options or is_secret(name)
        ),
    )


@lru_cache(maxsize=64)
def _warn_of_ignored(conn_id: str, fields: tuple[str, ...]) -> None:
    """Once in a process: the page reads its connection again and again."""
    for name in fields:
        _log.warning(
            "connection %s: the field %r is ignored; set [memwal] %s in Airflow's configuration",
            conn_id, name, name,
        )  # fmt: skip


def _storage_options(value: Any) -> dict[str, str]:
    if not value:
        return {}
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        # Without the text: it may hold secrets.
        raise Usage("the connection's storage options are not valid JSON") from None
    if not isinstance(parsed, Mapping):
        raise Usage("the connection's storage options are not a JSON object")
    return {str(key): str(option) for key, option in parsed.items()}
