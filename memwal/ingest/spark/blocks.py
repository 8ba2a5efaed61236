"""Blocks of one shard's rows, which go through Spark's shuffle, and files of them. Pure."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from memwal.store.records.ingests import StagedRecord


def pack_block(
    shard: tuple[str, str], part: int, place: int, rows: int, data: bytes
) -> pa.RecordBatch:
    """One block: some rows of (shard, entries), or lines of JSON of rows that can't be written."""
    return pa.record_batch(
        {
            "shard": [shard[0]],
            "entries": [shard[1]],
            "part": pa.array([part], pa.int64()),
            "place": pa.array([place], pa.int64()),
            "rows": pa.array([rows], pa.int64()),
            "data": pa.array([data], pa.binary()),
        }
    )


def gather_files(
    blocks: Iterator[dict[str, Any]], file_bytes: int
) -> Iterator[tuple[str, str, list[bytes], int]]:
    """(shard, entries, blocks' data, rows) of each file, cut at about `file_bytes`."""
    for (shard, entries), group in groupby(blocks, key=itemgetter("shard", "entries")):
        parts: list[bytes] = []
        rows = size_bytes = 0
        for block in group:
            parts.append(block["data"])
            rows += block["rows"]
            size_bytes += len(block["data"])
            if size_bytes >= file_bytes:
                yield shard, entries, parts, rows
                parts, rows, size_bytes = [], 0, 0
        if parts:
            yield shard, entries, parts, rows


def gather_records(files: Iterable[tuple[str, str, str, int]]) -> tuple[StagedRecord, ...]:
    """What was stored for each shard, from (shard, entries, path, rows) in the rows' order."""
    by_shard: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for shard, entries, path, rows in files:
        by_shard.setdefault((shard, entries), []).append((path, rows))
    return tuple(
        StagedRecord(
            shard_id=shard,
            entries=tuple((name, value) for name, value in json.loads(entries)),
            files=tuple(path for path, _ in stored),
            rows=sum(rows for _, rows in stored),
        )
        for (shard, entries), stored in sorted(by_shard.items())
    )


def encode_rows(tables: Sequence[pa.Table]) -> bytes:
    """Tables of one schema as the bytes of an Arrow stream."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, tables[0].schema) as stream:
        for table in tables:
            stream.write_table(table)
    return out.getvalue()


def decode_rows(data: bytes) -> pa.Table:
    """The rows of an Arrow stream."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
