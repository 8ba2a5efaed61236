"""Starts an Airflow under a keeper, waits until it is healthy, and stops it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

from local_airflow import keeper, leftovers
from local_airflow.home import AIRFLOW, LOOPBACK, ROOT, AirflowHome, StartFailed
from local_airflow.rest import AirflowClient

# The log servers of scheduler and triggerer listen on all interfaces, which can't be configured.
# They are not needed: the API server reads the same files itself.
PARTS = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
_HEALTH_NAMES = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_PATIENCE = keeper.Patience()
STOP_SECONDS_MAX = _PATIENCE.asking + _PATIENCE.telling + 7


@dataclass(frozen=True, kw_only=True)
class Extra:
    """Another program to run beside Airflow, with Airflow's environment."""

    name: str
    argv: Sequence[str]


def find_free_port(preferred: int = 0) -> int:
    """Find a free port of the loopback interface: `preferred`, or any."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise OSError("no free port on 127.0.0.1")


class AirflowServer:
    """`with AirflowServer(home, passwords) as server:` starts, waits, and stops.

    `home` has to be prepared. `pids` are the parts' process ids while it runs.
    """

    def __init__(
        self,
        home: AirflowHome,
        passwords: Mapping[str, str],
        *,
        port: int = 0,
        extras: Sequence[Extra] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` comes before the command line of each of Airflow's own parts."""
        self.home = home
        self.passwords = dict(passwords)
        self.port = find_free_port(port)
        self.base_url = f"http://{LOOPBACK}:{self.port}"
        self.extras = list(extras)
        self.prefix = list(prefix)
        self.pids: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        """The parts that ended by themselves, with their exit codes; the rest is then stopped."""
        self.stopped: dict[str, Any] = {}
        self._clients: dict[str, AirflowClient] = {}

    def __enter__(self) -> AirflowServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, seconds_max: float = 180) -> None:
        """Start all parts and wait until all are healthy; StartFailed leaves nothing running."""
        leftovers.kill_all(self.home.folder)
        self._began = time.time()
        self._keeper = subprocess.Popen(
            [sys.executable, keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps({"commands": self._commands()}).encode() + b"\n")
        self._keeper.stdin.flush()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self._wait_until_well(seconds_max)
        except BaseException:
            self.stop()
            raise

    def _commands(self) -> list[dict[str, Any]]:
        env = self.home.environment(self.port)
        programs = {name: [*self.prefix, str(AIRFLOW), *rest] for name, rest in PARTS.items()}
        programs |= {extra.name: list(extra.argv) for extra in self.extras}
        return [
            {"name": name, "argv": argv, "env": env, "cwd": str(ROOT), "log": str(self.log(name))}
            for name, argv in programs.items()
        ]

    def log(self, name: str) -> Path:
        """The file that a part's output goes to."""
        return self.home.folder / f"{name}.log"

    def _listen(self) -> None:
        assert self._keeper.stdout is not None
        for line in self._keeper.stdout:
            event = json.loads(line)
            if "started" in event:
                self.pids = event["started"]
            elif "ended" in event:
                self.ended[event["ended"]] = event["code"]
            else:
                self.stopped = event

    def _wait_until_well(self, seconds_max: float) -> None:
        end = time.monotonic() + seconds_max
        while not self.is_well():
            if self._keeper.poll() is not None or self.ended:
                self._listener.join(timeout=5)
                raise StartFailed(self._explain_failure())
            if time.monotonic() >= end:
                raise StartFailed(f"not well within {seconds_max:g} s: {self.health()}")
            time.sleep(0.25)

    def _explain_failure(self) -> str:
        texts = [
            f"{name} ended with {code}; the end of {self.log(name)}:\n"
            + self.log(name).read_text(errors="replace")[-3000:]
            for name, code in self.ended.items()
        ]
        return "\n".join(texts) or "the keeper ended"

    def health(self) -> dict[str, str]:
        """Return each part's health, in Airflow's word for it.

        It is `not yet` while Airflow's word is about an earlier start with the same database. Empty
        while the API server does not answer.
        """
        try:
            answer = httpx.get(f"{self.base_url}/api/v2/monitor/health", timeout=10)
            told = answer.raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return {}
        found = {}
        for name in _HEALTH_NAMES:
            part = told.get(name) or {}
            beat = part.get(f"latest_{name}_heartbeat")
            is_old = beat is not None and datetime.fromisoformat(beat).timestamp() < self._began
            found[name] = "not yet" if is_old else str(part.get("status"))
        return found

    def is_well(self) -> bool:
        """Whether all parts are healthy."""
        health = self.health()
        return bool(health) and set(health.values()) == {"healthy"}

    def client(self, user: str = "admin") -> AirflowClient:
        """Return a client that is logged in as `user`, the same one each time."""
        if user not in self._clients:
            self._clients[user] = AirflowClient(self.base_url, user, self.passwords[user])
        return self._clients[user]

    def forget_clients(self) -> None:
        """Log out; the next `client` logs in anew."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def has_ended(self, within_seconds: float) -> bool:
        """Wait, and return whether the keeper has ended: killed, or because a part ended."""
        try:
            self._keeper.wait(within_seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def processes(self) -> list[psutil.Process]:
        """List the keeper and everything below it."""
        try:
            top = psutil.Process(self._keeper.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def listening_addresses(self) -> set[tuple[str, int]]:
        """Return (address, port) of every TCP socket that one of `processes` listens on."""
        found = set()
        for process in self.processes():
            try:
                connections = process.net_connections(kind="tcp")
            except psutil.NoSuchProcess:
                continue
            found |= {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}
        return found

    def stop(self) -> None:
        """Stop everything and leave nothing behind; doing it twice is harmless."""
        self.forget_clients()
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._listener.join(timeout=5)
        # This finds something only if the keeper was killed.
        leftovers.kill_all(self.home.folder)
