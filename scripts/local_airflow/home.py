"""AIRFLOW_HOME and the environment that Airflow's processes get."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW = Path(sys.executable).parent / "airflow"
LOOPBACK = "127.0.0.1"
JOBS_BIN = Path(os.environ.get("VENV", ROOT / ".venv")).absolute() / "bin"
"""The folder of programs in the jobs' environment, which the Makefile's VENV names."""

MARK = "LOCAL_AIRFLOW_HOME"
"""The environment variable that marks all processes of one Airflow with its folder."""

DATABASE_WAIT_SECONDS = 60
"""How long a writer waits for another; SQLite takes one at a time, and 5 s are too few."""

ROLES = {"admin": "admin", "viewer": "viewer"}
"""Each user's role in Airflow's SimpleAuthManager."""

# Prefixes of variables that must not come from the caller's environment.
_NOT_INHERITED = ("AIRFLOW", "MEMWAL", "PYTHON", "VIRTUAL_ENV", "SPARK_", "PYSPARK_")


class StartFailed(Exception):
    """Airflow did not become healthy; the text names the part and has the end of its log."""


@dataclass(frozen=True, kw_only=True)
class AirflowHome:
    """The folder of one Airflow, and how that is set up.

    `settings` are further environment variables, which take precedence.
    """

    folder: Path
    dags: Path
    config_file: Path
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def database(self) -> Path:
        """Airflow's SQLite file."""
        return self.folder / "airflow.db"

    @property
    def logs(self) -> Path:
        """The folder of the tasks' logs."""
        return self.folder / "logs"

    @property
    def passwords_file(self) -> Path:
        """The SimpleAuthManager's passwords, in plain text, so only the owner may read the file."""
        return self.folder / "passwords.json"

    def environment(self, port: int) -> dict[str, str]:
        """Return all variables that an Airflow process needs, with the API server on `port`."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
        path = os.pathsep.join([str(AIRFLOW.parent), inherited.get("PATH", os.defpath)])
        return {
            **inherited,
            "PATH": path,
            "AIRFLOW_HOME": str(self.folder),
            # For `leftovers`; jobs get none of Airflow's own variables. The second variable keeps
            # process titles from being written over the environment.
            MARK: str(self.folder),
            "SPT_NOENV": "1",
            # The address that a job's local Spark listens on.
            "SPARK_LOCAL_IP": LOOPBACK,
            **{f"AIRFLOW__{key}": value for key, value in self._airflow_settings(port).items()},
            **self.settings,
        }

    def _airflow_settings(self, port: int) -> dict[str, str]:
        url = f"http://{LOOPBACK}:{port}"
        return {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__PLUGINS_FOLDER": str(self.folder / "plugins"),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "4",
            "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{u}:{r}" for u, r in ROLES.items()),
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.passwords_file),
            "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "1",
            "DATABASE__SQL_ALCHEMY_CONN": (
                f"sqlite:///{self.database}?timeout={DATABASE_WAIT_SECONDS}"
            ),
            "DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "LOGGING__BASE_LOG_FOLDER": str(self.logs),
            "LOGGING__COLORED_CONSOLE_LOG": "False",
            "API__HOST": LOOPBACK,
            "API__PORT": str(port),
            "API__BASE_URL": url,
            "API__WORKERS": "1",
            # A browser's open event stream would delay the shutdown for longer otherwise.
            "API__WORKER_TIMEOUT": "5",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
            "DAG_PROCESSOR__PARSING_PROCESSES": "2",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
            "MEMWAL__CONFIG_FILE": str(self.config_file),
            "MEMWAL__COMMAND": str(JOBS_BIN / "memwal"),
            **self._keys(),
        }

    def _keys(self) -> dict[str, str]:
        """Return keys that all processes share, stored so that a token outlives a restart."""
        file = self.folder / "keys.json"
        if not file.exists():
            fernet = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
            keys = {
                "API__SECRET_KEY": secrets.token_hex(32),
                "API_AUTH__JWT_SECRET": secrets.token_hex(64),
                "CORE__FERNET_KEY": fernet,
            }
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(file, json.dumps(keys))
        found: dict[str, str] = json.loads(file.read_text())
        return found

    def prepare(self, passwords: Mapping[str, str], template: Path | None = None) -> None:
        """Make the folder, the users and the database, keeping what is there already.

        `template` is a migrated database to start from, which saves the migration's seconds.
        Raises StartFailed with Airflow's output if the migration fails.
        """
        for folder in (self.folder, self.logs, self.folder / "plugins"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.passwords_file, json.dumps(dict(passwords)))
        if template is not None and not self.database.exists():
            shutil.copyfile(template, self.database)
        else:
            self._migrate()

    def _migrate(self) -> None:
        done = subprocess.run(
            [AIRFLOW, "db", "migrate"],
            env=self.environment(port=0),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StartFailed(f"airflow db migrate failed:\n{(done.stdout + done.stderr)[-4000:]}")


def write_private(file: Path, text: str) -> None:
    """Write a file that at no time anybody but its owner can read."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
