"""The real Airflow that the tests share, and the one in the tests' own process."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_airflow.home import JOBS_BIN, ROLES, ROOT, AirflowHome
from local_airflow.server import AirflowServer

from tests.airflow.tables import Tables

PASSWORDS = {
    "admin": "admin-for-tests",
    "viewer": "viewer-for-tests",
    "starter": "starter-for-tests",
}
STARTER = "starter:user"
"""A role that may start runs of DAGs, and read no connection."""
DAGS = ROOT / "dags"
EXAMPLES = ROOT / "airflow_plugins" / "memwal_airflow" / "example_dags"


class TestAirflow(AirflowServer):
    """A running Airflow, with tables that its configuration file names.

    `base_url`, `client(user)` (see rest.py), `token(user)`, `tables`, `config_file`. What it runs
    as memwal is a script that a test can change, by `set_command`.
    """

    __test__ = False

    def __init__(self, home: AirflowHome, tables: Tables) -> None:
        super().__init__(home, PASSWORDS)
        self.tables = tables
        self.config_file = home.config_file
        self.command_file = home.folder / "memwal"
        self.set_command()

    def set_command(self, script: str = f'exec {JOBS_BIN}/memwal "$@"') -> None:
        """What a run of the command does from here on; without a script the real thing."""
        new = self.command_file.with_suffix(".new")
        new.write_text(f"#!/bin/sh\n{script}\n")
        new.chmod(0o755)
        new.replace(self.command_file)

    def token(self, user: str = "admin") -> str:
        """A JWT for `Authorization: Bearer` or the cookie `_token`."""
        return self.client(user).token


@dataclass(frozen=True, kw_only=True)
class InProcessAirflow:
    """What a `dag.test()` has to work with: an empty database, tables, and memwal's command."""

    folder: Path
    tables: Tables
    command: Path

    @property
    def config_file(self) -> Path:
        return self.tables.config_file

    def register(self, dag: Any) -> None:
        """Make a DAG that stands in no DAG file known to Airflow, so that it can be run."""
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

        DagBundlesManager().sync_bundles_to_db()
        nothing = self.folder / "plugins"
        bag = DagBag(dag_folder=nothing, bundle_path=nothing)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, "dags-folder", None)

    def load_dag(self, dag_id: str) -> Any:
        """Parse its file in dags/ anew: the configuration file is read by then."""
        from airflow.dag_processing.dagbag import DagBag

        bag = DagBag(dag_folder=DAGS / f"{dag_id}.py", bundle_path=DAGS)
        assert bag.import_errors == {}
        return bag.dags[dag_id]


def server_settings(folder: Path) -> dict[str, str]:
    """What the shared Airflow is told besides."""
    users = ",".join([*(f"{user}:{role}" for user, role in ROLES.items()), STARTER])
    return {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": users,
        "AIRFLOW__MEMWAL__COMMAND": str(folder / "memwal"),
        "AIRFLOW_VAR_MEMWAL_PYTHON": str(JOBS_BIN / "python"),
        "AIRFLOW_VAR_ORDERS_COPY": str(folder / "copy.db"),
        # No test changes a DAG file, and parsing them costs the other tests. On a busy machine one
        # that is parsed again may be cut off, and its DAG would be stale until the next time.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "7200",
        "AIRFLOW__DAG_PROCESSOR__STALE_DAG_THRESHOLD": "7200",
    }


def copy_database(source: Path, target: Path) -> None:
    """Make the target as the source is, under whoever has one of them open in this process."""
    from airflow import settings

    settings.Session.remove()
    with closing(sqlite3.connect(source)) as opened, closing(sqlite3.connect(target)) as copy:
        opened.backup(copy)
