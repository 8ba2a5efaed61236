"""Tables that fail or grow without end, to stand beside healthy ones under one watch.

`big` has very many objects of generations that nobody collects. The store of `silent` accepts every
connection, and never answers. A worker that takes `deadly` is killed at once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from bench.counted_s3 import CountedS3
from bench.forged import forge_generations
from bench.harness import run_memwal
from bench.tables import make_base, new_shards, pending
from memwal.format import layout
from memwal.model import ShardId

BIG, SILENT, DEADLY = "big", "silent", "deadly"
_BUCKET = "sick"
_OBJECTS_A_GENERATION = 9
_LATENCY_SECONDS = 0.02
# A commit each, so that no round is over before its worker is killed.
_DEADLY_GENERATIONS = 60
_PID = re.compile(r":([0-9]+) \(start ")


class SilentServer:
    """`with SilentServer() as server:`; `connections` counts what it has accepted."""

    def __enter__(self) -> Self:
        self.connections: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        with suppress(OSError):  # it is over
            while True:
                self.connections.append(self._socket.accept()[0])

    def __exit__(self, *error: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        for each in (self._socket, *self.connections):
            each.close()


class WorkerKiller(threading.Thread):
    """Kills whatever process takes the lease of a local table, again and again, until `stop`."""

    def __init__(self, table: Path) -> None:
        super().__init__(daemon=True)
        self.killed_at: list[float] = []
        self._leases = table / layout.LEASE
        self._stopped = threading.Event()

    def run(self) -> None:
        known: set[str] = set()
        while not self._stopped.wait(0.005):
            for path in self._leases.glob("0*"):
                if path.name not in known:
                    known.add(path.name)
                    self._kill(json.loads(path.read_bytes())["holder"])

    def _kill(self, holder: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(find_pid(holder), signal.SIGKILL)
            self.killed_at.append(time.monotonic())

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def find_pid(holder: str) -> int:
    """The process that holds a lease."""
    pid = _PID.search(holder)
    assert pid is not None, holder
    return int(pid[1])


class SickTables:
    """`with SickTables(folder, objects=20_000) as sick:`; `config` has the lines that name them."""

    def __init__(self, folder: Path, *, objects: int) -> None:
        self._folder, self._objects = folder, objects
        self._stack = ExitStack()
        self.silent = SilentServer()
        self.server = CountedS3()
        self.big_uri = f"s3://{_BUCKET}/{BIG}"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.silent)
            stack.enter_context(self.server)
            self.big_shard = self._make_big()
            deadly = self._folder / DEADLY
            _make_table(deadly, _DEADLY_GENERATIONS)
            self.killer = WorkerKiller(deadly)
            self.killer.start()
            stack.callback(self.killer.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _make_big(self) -> ShardId:
        folder = self._folder / BIG
        shard = _make_table(folder, 1)
        run_memwal("maintain", folder, "--engine", "local")
        count = self._objects // _OBJECTS_A_GENERATION
        like = forge_generations(folder, shard, count)
        self.server.load(folder, _BUCKET, BIG)
        others = [f"{BIG}/{like[:-1]}{number}" for number in range(2, count + 1)]
        self.server.copy(_BUCKET, f"{BIG}/{like}", others)
        self.server.latency(_LATENCY_SECONDS)
        pending(self.big_uri, [shard], 1, 20, 100, dim=0, options=self.server.storage_options)
        return shard

    @property
    def config(self) -> str:
        """Tables of `memwal.toml`."""
        away = {**self.server.storage_options, "aws_endpoint": self.silent.endpoint}
        away["client_retry_timeout"] = "4"
        return (
            f"[tables.{BIG}]\nuri = {json.dumps(self.big_uri)}\n"
            f"storage_options = {_inline(self.server.storage_options)}\n"
            f'[tables.{SILENT}]\nuri = "s3://{_BUCKET}/{SILENT}"\n'
            f"storage_options = {_inline(away)}\n"
            f"[tables.{DEADLY}]\nuri = {json.dumps(str(self._folder / DEADLY))}\n"
            "generations_per_commit_max = 1\n"
        )


def _make_table(folder: Path, generations: int) -> ShardId:
    """With one shard, and so many generations that are not merged."""
    (shard,) = new_shards(1)
    make_base(folder, 100, dim=0)
    pending(folder, [shard], generations, 20, 100, dim=0)
    return ShardId(shard)


def _inline(options: Mapping[str, str]) -> str:
    return f"{{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in options.items())} }}"
