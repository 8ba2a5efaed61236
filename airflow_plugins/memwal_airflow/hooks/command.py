"""Command lines and environments for processes in the jobs' environment.

Secrets are passed in the environment only, because a command line shows up in process lists, logs
and rendered templates.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memwal.config import (
    AIRFLOW_TASK_VARIABLE,
    RUN_ID_VARIABLE,
    STORAGE_OPTIONS_VARIABLE,
    name_variable,
)
from memwal_airflow.hooks.request import build_words

# Variables that are none of a job's business (Airflow's database, keys and connections), and those
# that would point its Python or Spark away from its own environment.
_WITHHELD_PREFIXES = ("AIRFLOW", "_AIRFLOW")
_WITHHELD = (
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SPARK_HOME", "PYSPARK_PYTHON"),
    *(RUN_ID_VARIABLE, AIRFLOW_TASK_VARIABLE),  # these are about whatever started Airflow itself
)
# One command looks at several tables, and all of them wait for the slowest store.
_LOOK_STORE_SECONDS_MAX = 10


@dataclass(frozen=True, kw_only=True)
class JobsEnvironment:
    """The environment that the jobs run in, with their configuration and the store's options.

    The `storage_options` named in `secret_names` are secrets; `repr` leaves all options out.
    """

    command: str
    config_file: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_names: frozenset[str] = frozenset()

    def memwal(self, job: str, options: Sequence[str], tables: Sequence[str]) -> list[str]:
        """`memwal JOB OPTIONS -- TABLES`, with the configuration file. Raises Usage."""
        return [self.command, job, *build_words([*options, *self.config_words], tables)]

    @property
    def config_words(self) -> list[str]:
        """The option that names the configuration file.

        Without one an empty file is named; otherwise memwal would look for one in whatever folder
        the process happens to run in.
        """
        return ["--config", self.config_file or os.devnull]

    def variables(
        self,
        *,
        run_id: str | None = None,
        task: Mapping[str, Any] | None = None,
    ) -> dict[str, str]:
        """Return the environment variables for a process, made from our own.

        `run_id` is the id that memwal gives its run, `task` the Airflow task that starts it (see
        `describe_task`).
        """
        variables = {
            name: value
            for name, value in os.environ.items()
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
        """The variables of a process that only looks, and gives up on a store sooner than a job."""
        return {
            **self.variables(),
            name_variable("store_seconds_max"): str(_LOOK_STORE_SECONDS_MAX),
        }

    @property
    def secrets(self) -> list[str]:
        """The values that must not show up anywhere."""
        return [self.storage_options[name] for name in sorted(self.secret_names)]
