"""The connection type `memwal`: which store the jobs open, and with which credentials."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import amask_secret, mask_secret

from memwal.config import Config
from memwal.report import DONE, PARTIAL
from memwal_airflow.hooks.command import JobsEnvironment, read_environment
from memwal_airflow.hooks.query import NoAnswer, query
from memwal_airflow.hooks.redaction import clean_line
from memwal_airflow.settings import read_config

# Airflow allows a connection test that runs on a worker one minute.
_TEST_SECONDS_MAX = 50
_TABLES_MAX = 2


class MemWalHook(BaseHook):
    """Reads a `memwal` connection.

    The default connection need not exist: the `[memwal]` section and the workers' own credentials
    are often enough.
    """

    conn_name_attr = "conn_id"
    default_conn_name = "memwal_default"
    conn_type = "memwal"
    hook_name = "MemWAL"

    def __init__(self, conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id

    def environment(self) -> JobsEnvironment:
        """Return the jobs' environment, and have its secrets masked in logs from now on."""
        try:
            found = _environment(self.get_connection(self.conn_id))
        except AirflowNotFoundException:
            return self._without_connection()
        for secret in found.secrets:
            mask_secret(secret)
        return found

    async def environment_async(self) -> JobsEnvironment:
        """Return the same as `environment`, for use in triggers."""
        try:
            found = _environment(await self.aget_connection(self.conn_id))
        except AirflowNotFoundException:
            return self._without_connection()
        for secret in found.secrets:
            await amask_secret(secret)
        return found

    def _without_connection(self) -> JobsEnvironment:
        if self.conn_id != self.default_conn_name:
            raise AirflowNotFoundException(f"there is no connection {self.conn_id!r}")
        return read_environment({})

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's "Test" button: try whether this connection can read a configured table."""
        try:
            jobs = self.environment()
            names = choose_tables(read_config(jobs.config_file), jobs)
            return asyncio.run(_look(jobs, names)) if names else _try_command(jobs)
        except Exception as error:
            return False, str(error)


def choose_tables(config: Config, jobs: JobsEnvironment) -> list[str]:
    """Choose some tables to try a connection on, those in remote stores first.

    A connection with storage options is tried on those alone, if there are any.
    """
    stored = [name for name, table in config.tables.items() if _is_remote(table.uri)]
    if not (stored and jobs.storage_options):
        stored += [name for name in config.tables if name not in stored]
    return stored[:_TABLES_MAX]


def _is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith("file:")


async def _look(jobs: JobsEnvironment, names: Sequence[str]) -> tuple[bool, str]:
    """Try tables until one can be read, which is enough: the others may have their own problems."""
    troubles: list[str] = []
    for name in names:
        try:
            options = ["--consistency", "snapshot"]
            found = await query(
                jobs, "status", [name], options, seconds_max=_TEST_SECONDS_MAX / _TABLES_MAX
            )
        except NoAnswer as error:
            trouble = str(error)
        else:
            table = found.tables[0] if found.tables else found.document
            if table.get("outcome") in (DONE, PARTIAL):
                well = f"read {name} at version {table.get('version_after')}"
                return True, "; but ".join([well, *troubles])
            trouble = f"{table.get('error')}"
        troubles.append(f"{name}: {clean_line(trouble, jobs.secrets)}")
    return False, "; ".join(troubles)


def _try_command(jobs: JobsEnvironment) -> tuple[bool, str]:
    done = subprocess.run(
        [jobs.command, "--version"],
        capture_output=True,
        text=True,
        timeout=_TEST_SECONDS_MAX,
        env=jobs.variables(),
    )
    if done.returncode:
        return False, done.stderr.strip()[-500:]
    where = jobs.config_file or "[memwal] config_file is not set"
    return True, f"{jobs.command} answers; no store was tried, for no table is configured ({where})"


def _environment(connection: Connection) -> JobsEnvironment:
    return read_environment(
        connection.extra_dejson,
        host=connection.host,
        login=connection.login,
        password=connection.password,
    )
