"""The connection type `memwal`: which store the jobs open, and with which credentials."""

from __future__ import annotations

import subprocess
from typing import Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import amask_secret, mask_secret

from memwal_airflow.command import JobsEnvironment, read_environment

_TEST_SECONDS_MAX = 60


class MemWalHook(BaseHook):
    """Reads a `memwal` connection.

    The default connection may be missing: the `[memwal]` section and the workers' own credentials
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
        """The jobs' environment. Its secrets are masked in the logs from here on."""
        try:
            found = _environment(self.get_connection(self.conn_id))
        except AirflowNotFoundException:
            return self._without_connection()
        for secret in found.secrets:
            mask_secret(secret)
        return found

    async def environment_async(self) -> JobsEnvironment:
        """As `environment`, for triggers."""
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
        """Airflow's "Test" button: whether the command runs."""
        try:
            jobs = self.environment()
            done = subprocess.run(
                [jobs.command, "--help"],
                capture_output=True,
                text=True,
                timeout=_TEST_SECONDS_MAX,
                env=jobs.variables(),
            )
        except Exception as error:
            return False, str(error)
        if done.returncode:
            return False, done.stderr.strip()[-500:]
        return True, f"{jobs.command} answers"


def _environment(connection: Connection) -> JobsEnvironment:
    return read_environment(
        connection.extra_dejson,
        host=connection.host,
        login=connection.login,
        password=connection.password,
        conn_id=connection.conn_id,
    )
