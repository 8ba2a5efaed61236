"""The connection type `memwal`: which store the jobs open, and with which credentials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import amask_secret, mask_secret

from memwal.config import Config
from memwal.errors import Usage
from memwal.report import DONE, PARTIAL
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.query import ask
from memwal_airflow.hooks.redaction import clean_line, is_secret
from memwal_airflow.processes.process import Runner
from memwal_airflow.settings import read_config, read_settings

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
            found = read_environment(self.get_connection(self.conn_id))
        except AirflowNotFoundException:
            return self._without_connection()
        for secret in found.secrets:
            mask_secret(secret)
        return found

    async def environment_async(self) -> JobsEnvironment:
        """Return the same as `environment`, for use in triggers."""
        try:
            found = read_environment(await self.aget_connection(self.conn_id))
        except AirflowNotFoundException:
            return self._without_connection()
        for secret in found.secrets:
            await amask_secret(secret)
        return found

    def _without_connection(self) -> JobsEnvironment:
        if self.conn_id != self.default_conn_name:
            raise AirflowNotFoundException(f"there is no connection {self.conn_id!r}")
        return read_environment()

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's "Test" button: try whether this connection can read a configured table.

        One that can is enough: the others may have their own problems.
        """
        try:
            jobs = self.environment()
            names = choose_tables(read_config(jobs.config_file), jobs)
            if not names:
                return False, "no table is configured: see [memwal] config_file"
            how = ["--consistency", "snapshot"]
            answer = ask(Runner(), jobs, "status", names, how, seconds_max=_TEST_SECONDS_MAX)
        except Exception as error:
            return False, str(error)
        tables = answer.tables or [answer.document]
        well = [t for t in tables if t.get("outcome") in (DONE, PARTIAL)]
        read = [f"read {t['table']} at version {t.get('version_after')}" for t in well]
        troubles = [f"{t.get('table')}: {t.get('error')}" for t in tables if t not in well]
        return bool(well), "; but ".join([*read, *(clean_line(t, jobs.secrets) for t in troubles)])


def choose_tables(config: Config, jobs: JobsEnvironment) -> list[str]:
    """Choose some tables to try a connection on, those in remote stores first.

    A connection with storage options is tried on those alone, if there are any.
    """
    remote = [name for name, table in config.tables.items() if "://" in table.uri]
    if remote and jobs.storage_options:
        return remote[:_TABLES_MAX]
    return list(dict.fromkeys([*remote, *config.tables]))[:_TABLES_MAX]


def read_environment(connection: Connection | None = None) -> JobsEnvironment:
    """Read store and credentials from a connection, the rest from `[memwal]`. Raises Usage.

    Only Airflow's own configuration may say which code runs, and on which tables: the API server
    runs the command too, for everybody who looks at the page.
    """
    settings, options, secret_options = read_settings(), {}, {}
    if connection is not None:
        extra = connection.extra_dejson
        # Airflow masks fields of `extra` whose names suggest a secret: hence a second field.
        secret_options = _storage_options(extra.get("secret_storage_options"))
        options = {**_storage_options(extra.get("storage_options")), **secret_options}
        if host := connection.host:
            options.setdefault("aws_endpoint", host)
            if host.startswith("http://"):
                options.setdefault("allow_http", "true")
        if connection.login:
            options["aws_access_key_id"] = connection.login
        if connection.password:
            options["aws_secret_access_key"] = connection.password
    return JobsEnvironment(
        command=settings.command,
        config_file=settings.config_file,
        storage_options=options,
        secret_names=frozenset(
            name for name in options if name in secret_options or is_secret(name)
        ),
    )


def _storage_options(value: Any) -> dict[str, str]:
    if not value:
        return {}
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        # The message leaves the text out: it may hold secrets.
        raise Usage("the connection's storage options are not valid JSON") from None
    if not isinstance(parsed, Mapping):
        raise Usage("the connection's storage options are not a JSON object")
    return {str(key): str(option) for key, option in parsed.items()}
