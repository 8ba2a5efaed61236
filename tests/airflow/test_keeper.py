"""Nothing that a keeper started outlives it, whatever that did and however the keeper ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from local_airflow import keeper, leftovers
from local_airflow.home import MARK
from local_airflow.rest import wait_until

pytestmark = pytest.mark.nightly

# A child of its own in a session of its own whose parent is gone: what a daemon does.
RUNAWAY = "(setsid sh -c 'echo $$ >runaway; {inner}' &) ; echo $$ >parent; {outer}"
SLEEP = "exec sleep 600"
POLITE = RUNAWAY.format(inner=SLEEP, outer=SLEEP)
DEAF = RUNAWAY.format(inner='trap "" TERM INT HUP; while :; do sleep 0.2; done', outer=SLEEP)
PATIENCE_SECONDS = 30


class Kept:
    """A keeper with one command."""

    def __init__(self, folder: Path, script: str) -> None:
        # Who is polite may take its time where much else runs; who is deaf is not waited for.
        patience = 0.4 if script == DEAF else PATIENCE_SECONDS
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, keeper.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        command = {
            "name": "it",
            "argv": ["sh", "-c", script],
            "env": {"PATH": os.environ["PATH"], MARK: str(folder)},
            "cwd": str(folder),
            "log": str(folder / "log"),
        }
        assert self.process.stdin is not None
        plan = {"commands": [command], "asking": 0.4, "telling": patience}
        self.process.stdin.write(json.dumps(plan).encode() + b"\n")
        self.process.stdin.flush()

    def pids(self) -> dict[str, int]:
        """What runs below it, once all of that runs."""

        def look() -> dict[str, int] | None:
            files = [self.folder / name for name in ("runaway", "parent")]
            texts = {f.name: f.read_text() for f in files if f.exists()}
            done = len(texts) == 2 and all(texts.values())
            return {name: int(text) for name, text in texts.items()} if done else None

        return wait_until("processes", look, 60, every=0.02)

    def told(self) -> list[dict[str, Any]]:
        """Wait for its end; all that it said."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines()
        assert self.process.wait(timeout=60) == 0
        return [json.loads(line) for line in lines]


@contextmanager
def kept(folder: Path, script: str) -> Iterator[Kept]:
    made = Kept(folder, script)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        leftovers.kill_all(folder)


@pytest.mark.parametrize("way", ["stdin ends", "TERM", "INT"])
@pytest.mark.parametrize(("script", "killed"), [(POLITE, 0), (DEAF, 1)], ids=["polite", "deaf"])
def test_nothing_is_left(tmp_path: Path, way: str, script: str, killed: int) -> None:
    with kept(tmp_path, script) as it:
        pids = it.pids()
        assert psutil.Process(pids["runaway"]).ppid() == it.process.pid

        if way == "stdin ends":
            assert it.process.stdin is not None
            it.process.stdin.close()
        else:
            it.process.send_signal(getattr(signal, f"SIG{way}"))
        told = it.told()

        assert told[0] == {"started": {"it": pids["parent"]}}
        assert told[-1].keys() == {"stopped", "killed"}
        assert told[-1]["stopped"] < PATIENCE_SECONDS
        # The deaf one's own `sleep` may be among them.
        assert bool(told[-1]["killed"]) is bool(killed)
        assert [pid for pid in pids.values() if psutil.pid_exists(pid)] == []
        assert leftovers.find_processes(tmp_path) == []


def test_when_a_part_ends_the_rest_does(tmp_path: Path) -> None:
    script = RUNAWAY.format(inner=SLEEP, outer="sleep 1; exit 3")
    with kept(tmp_path, script) as it:
        pids = it.pids()
        told = it.told()
        assert {"ended": "it", "code": 3} in told
        assert not psutil.pid_exists(pids["runaway"])


def test_a_killed_keeper_takes_its_parts_along_and_the_rest_is_found(tmp_path: Path) -> None:
    with kept(tmp_path, DEAF) as it:
        pids = it.pids()
        it.process.kill()
        it.process.wait()
        wait_until("its end", lambda: not psutil.pid_exists(pids["parent"]), 60)
        assert pids["runaway"] in leftovers.find_processes(tmp_path)

        assert leftovers.kill_all(tmp_path) >= 1

        assert leftovers.find_processes(tmp_path) == []
