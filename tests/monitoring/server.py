"""A real Prometheus that scrapes what a test serves."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

START_SECONDS_MAX = 60


class Prometheus:
    """`with Prometheus(program, folder, rules, targets) as server:`; targets are HOST:PORT.

    It keeps the labels of the second target as they are, and renames those of the first that it has
    itself, as it does unless it is told.
    """

    def __init__(
        self, program: Path, folder: Path, rules: Sequence[Path], targets: Sequence[str]
    ) -> None:
        config = {
            "global": {
                "scrape_interval": "200ms",
                "scrape_timeout": "200ms",
                "evaluation_interval": "500ms",
            },
            "rule_files": [str(file) for file in rules],
            "scrape_configs": [
                {
                    "job_name": f"memwal-{n}",
                    "honor_labels": n == 1,
                    "static_configs": [{"targets": [t]}],
                }
                for n, t in enumerate(targets)
            ],
        }
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._place = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = folder / "prometheus.log"
        self._command = [
            program,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address={self._place}",
            "--log.level=warn",
        ]

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(self._log.read_text())
            time.sleep(0.05)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"http://{self._place}/-/ready", timeout=5):
                return True
        except (HTTPError, URLError, ConnectionError):
            return False

    def ask(self, path: str, **arguments: str) -> Any:
        """The data of an answer of its API. Raises HTTPError."""
        address = f"http://{self._place}/api/v1/{path}?{urlencode(arguments)}"
        with urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """The labels and values of a query's result now."""
        found = self.ask("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]
