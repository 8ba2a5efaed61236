"""The lake of `airflow_day.py`: tables of four kinds under live writers, and some in trouble.

Run by .venv's Python and asked by lines of JSON, as `tests/airflow/table_maker.py` is.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("LANCE_LOG", "error,lance::index=off")

import lance

from memwal.read import open_table
from memwal.run.lease import HeldLease
from memwal.run.stores import open_stores
from tests.airflow.table_maker import serve
from tests.faults.soaked import Soaked
from tests.support.builders import Put, make_table
from tests.support.lancedb_process import PYTHON, LanceDb

KINDS = ("composite", "policy", "indexed", "lancedb")
TROUBLED = {"bills": "damaged", "clicks": "unreachable", "stock": "held", "visits": "missing"}
HOLDER = "somebody else"
_KEYS = 60


@dataclass(kw_only=True)
class LanceDbTable:
    """A table that LanceDB writes to, one row at a time, from a process of its own."""

    name: str
    folder: Path
    pause_seconds: float
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    error: str = ""

    def __post_init__(self) -> None:
        self.uri = str(self.folder / self.name / "t.lance")
        client = [str(PYTHON), "tests/support/lancedb_client.py"]
        self._process = subprocess.Popen(
            client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._client = LanceDb(self._process)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def make(self) -> None:
        self._client("connect", folder=str(Path(self.uri).parent))
        self._client("create", spec=["bucket", "id", 2])

    def start_writer(self) -> None:
        self._thread.start()

    def _write(self) -> None:
        turn = 0
        while not self._stopping.wait(self.pause_seconds * 3):
            turn += 1
            key = turn * 7 % _KEYS
            row = {"id": key, "tenant": f"tenant {key % 3}", "n": turn}
            try:
                self._client("put", rows=[row])
            except Exception as error:
                self.error = f"{self.name}: LanceDB's writer: {error}"
                return
            self.rows[key] = row

    def pause(self) -> None:
        """A put of LanceDB's is flushed when it returns."""
        self._stopping.set()
        self._thread.join(timeout=60)
        assert not self.error, self.error

    @property
    def writes(self) -> int:
        return max((row["n"] for row in self.rows.values()), default=0)

    def check(self, *, merged: bool) -> None:
        found = {
            "memwal": open_table(self.uri, {}).read().read_all().to_pylist(),
            "LanceDB": self._client("read"),
        }
        if merged:
            found["base"] = lance.dataset(self.uri).to_table().to_pylist()
        for who, rows in found.items():
            seen = {row["id"]: row for row in rows}
            assert len(seen) == len(rows), f"{self.name}: {who} sees a key twice"
            assert seen == self.rows, f"{self.name}: {who} sees other rows than were written"

    def kill_writer(self) -> None:
        self._process.kill()


Written = Soaked | LanceDbTable
TABLES: dict[str, Written] = {}
KEPT: list[Any] = []
"""What has to live as long as this process: a lease, a socket."""


def make(folder: str, tables: int, seed: int, pause_seconds: float) -> list[dict[str, Any]]:
    """The tables, the troubled ones last: {"name", "uri", "options", "trouble"} of each."""
    made = []
    kinds = KINDS if PYTHON.exists() else KINDS[:-1]
    for number in range(tables - len(TROUBLED)):
        kind = kinds[number % len(kinds)]
        name = f"{kind}_{number:02}"
        made.append(_make_written(name, kind, Path(folder), seed + number, pause_seconds))
    for name, trouble in TROUBLED.items():
        make_one = _MAKERS.get(trouble)
        place = make_one(Path(folder) / name) if make_one else {"uri": f"{folder}/{name}"}
        made.append({"name": name, "options": {}, "trouble": trouble, **place})
    return made


def _make_written(
    name: str, kind: str, folder: Path, seed: int, pause_seconds: float
) -> dict[str, Any]:
    table: Written
    if kind == "lancedb":
        table = LanceDbTable(name=name, folder=folder, pause_seconds=pause_seconds)
    else:
        table = Soaked(
            name=name,
            kind_name=kind,
            uri=str(folder / name),
            folder=folder,
            seed=seed,
            pause_seconds=pause_seconds,
        )
    table.make()
    TABLES[name] = table
    return {"name": name, "uri": table.uri, "options": {}, "trouble": None}


def _make_damaged(place: Path) -> dict[str, Any]:
    """Every manifest of its shard holds bytes that mean nothing."""
    table = make_table(place, rows=range(20), shards=1, indexed=True)
    for n in range(3):
        table.flush(table.shards[0], Put([1, 2, 3], n=10 * n))
    for manifest in (place / "_mem_wal" / str(table.shards[0]) / "manifest").glob("*.binpb"):
        manifest.write_bytes(b"\xff" * 40)
    return {"uri": str(place)}


def _make_unreachable(place: Path) -> dict[str, Any]:
    """Its store takes connections and never answers."""
    silent = socket.create_server(("127.0.0.1", 0), backlog=512)
    KEPT.append(silent)
    return {
        "uri": f"s3://lake/{place.name}",
        "options": {
            "aws_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
            "allow_http": "true",
        },
    }


def _make_held(place: Path) -> dict[str, Any]:
    """Somebody holds its lease and never lets go; there is work for every job."""
    table = make_table(place, rows=range(20), shards=1, indexed=True)
    for n in range(3):
        table.flush(table.shards[0], Put([1, 2, 3], n=10 * n))
    KEPT.append(HeldLease(open_stores(table.uri, {}).leases, HOLDER))
    return {"uri": table.uri}


_MAKERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "damaged": _make_damaged,
    "unreachable": _make_unreachable,
    "held": _make_held,
}


def start() -> None:
    """Let the writers write."""
    for table in TABLES.values():
        table.start_writer()


def pause() -> dict[str, int]:
    """Stop them, with everything flushed; how often each has written."""
    for table in TABLES.values():
        table.pause()
    return {name: table.writes for name, table in TABLES.items()}


def check(name: str) -> str:
    """What is wrong with the rows of a table that is merged; empty when nothing is."""
    try:
        TABLES[name].check(merged=True)
    except AssertionError as error:
        return str(error) or repr(error)
    return ""


def end() -> None:
    """Leave no writer behind."""
    for table in TABLES.values():
        table.kill_writer()


OPERATIONS: Iterable[Callable[..., Any]] = (make, start, pause, check, end)

if __name__ == "__main__":
    serve({operation.__name__: operation for operation in OPERATIONS})
    end()
