"""The folder that `make airflow` keeps its Airflow and its tables in."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from local_airflow.home import JOBS_BIN, ROOT, AirflowHome
from local_airflow.server import Extra

MARKER = ".made-by-memwal"
TABLES = ("orders", "products", "customers")
_WRITER = ROOT / "scripts" / "demo_writer.py"

# Busy enough that there is something to see within minutes.
_CONFIG_HEAD = """\
# Written by `make airflow`, anew at each start.
[defaults]
due_generations_min = 4
due_age_seconds_min = 90
retention = "1d"
runs_kept_max = 200

[airflow]
merge_schedule = "* * * * *"
garbage_schedule = "*/10 * * * *"
compaction_schedule = "*/20 * * * *"
deferrable = true
retry_delay_seconds = 10
execution_timeout_seconds = 900
"""


class Unusable(Exception):
    """The folder can't be used; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class DemoFolder:
    """The demo's folder: all that the demo writes is below it, and nothing else is in it."""

    folder: Path

    @property
    def home(self) -> AirflowHome:
        """The Airflow in the folder."""
        return AirflowHome(
            folder=self.folder / "airflow",
            dags=ROOT / "dags",
            config_file=self.folder / "memwal.toml",
            # A task that the last stop cut off is noticed within a minute.
            settings={"AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60"},
        )

    @property
    def tables(self) -> Path:
        """The folder of the Lance tables."""
        return self.folder / "tables"

    @property
    def writer(self) -> Extra:
        """The program that goes on writing to the tables."""
        return Extra(name="writer", argv=self._writer())

    def claim(self, *, fresh: bool) -> IO[str]:
        """Claim the folder for as long as the returned file stays open.

        `fresh` removes what an earlier demo left. Raises Unusable if the folder holds anything that
        no demo made, or while another demo runs in it.
        """
        marker = self.folder / MARKER
        if not marker.exists() and self.folder.exists() and any(self.folder.iterdir()):
            raise Unusable(f"{self.folder} holds something that `make airflow` did not make")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        claimed = marker.open("a")
        try:
            fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            claimed.close()
            raise Unusable(f"another `make airflow` runs in {self.folder}") from None
        if fresh:
            self._empty(marker)
        return claimed

    def _empty(self, marker: Path) -> None:
        for entry in self.folder.iterdir():
            if entry == marker:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def make_tables(self) -> None:
        """Make the tables that are missing, and the configuration file that names them.

        Raises Unusable with the writer's output if that fails.
        """
        self.tables.mkdir(exist_ok=True)
        done = subprocess.run(
            [*self._writer(), "--make"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Unusable(f"the tables could not be made:\n{done.stderr[-3000:]}")
        sections = [f'[tables.{n}]\nuri = "{self.tables / n}"\n' for n in TABLES]
        self.home.config_file.write_text("\n".join([_CONFIG_HEAD, *sections]))

    def _writer(self) -> list[str]:
        return [str(JOBS_BIN / "python"), str(_WRITER), str(self.tables)]
