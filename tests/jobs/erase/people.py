"""People, of whom some are to be erased: their tables, and what of them is found in bytes."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from memwal.config import ResolvedTable, Settings
from memwal.jobs.erase.job import EraseOptions, run_erase
from memwal.jobs.erase.request import EraseRequest
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.ports import Steps, no_steps
from memwal.read import open_table
from tests.support.progress import Quiet
from tests.support.raw_bytes import find_marks

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False, metadata=KEY),
        pa.field("note", pa.string()),
        pa.field("v", pa.list_(pa.float32(), 4)),
    ]
)
NOW = {"retention_seconds": 0.0, "grace_seconds": 0.0, "allow_short_retention": True}
Rows = dict[str, dict[str, Any]]


def mark_of(key: str, n: int) -> str:
    """A word of a row that is in nothing else."""
    return f"wq{key[-4:]}zx{n:03d}"


def vector_of(key: str, n: int) -> list[float]:
    return [1e9 + 7919.0 * int(key[-4:]), 3e7 + 131.0 * n, 1.0, 0.5]


def marks(*keys: str) -> list[bytes]:
    """Bytes that rows of the keys have, in any of their forms."""
    found = [key.encode() for key in keys]
    for key in keys:
        found += [mark_of(key, n).encode() for n in range(9)]
        found += [struct.pack("<2f", *vector_of(key, n)[:2]) for n in range(9)]
    return found


def rows_of(keys: Sequence[str], n: int) -> pa.Table:
    return pa.table(
        {
            "id": list(keys),
            "note": [f"{mark_of(key, n)} words" for key in keys],
            "v": [vector_of(key, n) for key in keys],
        },
        schema=SCHEMA,
    )


def named(*numbers: int) -> list[str]:
    return [f"person-{n:04d}" for n in numbers]


@dataclass(kw_only=True)
class People:
    """A table of people."""

    uri: str
    shard: str = field(default_factory=lambda: str(uuid.uuid4()))
    settings: Settings = Settings()
    policy: Any = None
    open_writers: list[Any] = field(default_factory=list)

    def write(self, *parts: pa.Table, closes: bool = True) -> None:
        writer = lance.dataset(self.uri).mem_wal_writer(
            self.shard, durable_write=True, max_wal_flush_interval_ms=1
        )
        for part in parts:
            writer.put(part)
        if closes:
            writer.close()
        else:
            self.open_writers.append(writer)

    @property
    def resolved(self) -> ResolvedTable:
        return ResolvedTable(
            name="t",
            uri=self.uri,
            settings=self.settings,
            storage_options={},
            policy=self.policy,
        )

    def run(self, job: Any, kind: Any, **more: Any) -> Any:
        (report,) = job(kind(tables=[self.resolved], engine="local", **more), Quiet()).tables
        assert report.error is None, report
        return report

    def maintain(self) -> None:
        self.run(run_merge, MergeOptions)
        self.run(run_index_catchup, IndexCatchupOptions)

    def rows(self) -> Rows:
        found = open_table(self.uri).read(with_wal=True).read_all().to_pylist()
        return {row["id"]: row for row in found}

    def files(self) -> list[str]:
        root = Path(self.uri)
        return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def make_people(
    folder: Path, *, stable: bool = False, writes: dict[str, Any] | None = None
) -> People:
    """400 people with three indexes: rows merged twice, one pending, one in the WAL only."""
    table = People(uri=str(folder / "t"))
    first = rows_of(named(*range(300)), 0)
    dataset = lance.write_dataset(
        first, table.uri, schema=SCHEMA, max_rows_per_file=100,
        enable_stable_row_ids=stable, **(writes or {}),
    )  # fmt: skip
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    dataset.create_scalar_index("note", "INVERTED", name="note_idx")
    dataset.create_index("v", "IVF_FLAT", num_partitions=2, name="v_idx")
    dataset.initialize_mem_wal()
    table.write(rows_of(named(5, 6, 7), 1))
    table.maintain()
    table.write(rows_of(named(7, 8, 500), 2))
    table.write(rows_of(named(7, 501), 3), closes=False)
    return table


def erase(
    table: People,
    *keys: str,
    execute: bool = True,
    steps: Steps = no_steps,
    confirm: Any = None,
    **asked: Any,
) -> Any:
    given = {"key": [f"id={key}" for key in keys], "yes": confirm is None, **NOW, **asked}
    request = EraseRequest(execute=execute, **given)
    options = EraseOptions(
        tables=[table.resolved],
        request=request,
        confirm=confirm or (lambda name, shards: True),
        steps=steps,
    )
    return run_erase(options, Quiet()).tables[0]


def held(report: Any) -> dict[str, str]:
    return {o.path: o.why for o in report.objects if o.state in ("held", "unknown")}


def check_gone(table: People, *keys: str) -> None:
    assert find_marks(table.uri, marks(*keys)) == {}
