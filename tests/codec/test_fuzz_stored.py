"""Bytes out of storage, damaged in every way: a clear error or an honest answer, and nothing else.

Each parser gets its own valid bytes with some bytes flipped, cut, doubled or put in, and its JSON
with values of other types. What it may raise is in its contract; a crash, a hang, a path outside
the table or an allocation by a forged length is none of it.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memwal import layout
from memwal.config import load_config
from memwal.errors import Corruption, MemWalError, Missing, Refused, Usage
from memwal.model import LeaseClaim, ShardId
from memwal.plan.snapshot import SnapshotRow
from memwal.report import RunRecord
from memwal.store.lease import FOLDER, StoredLeases, claim_path
from memwal.store.retained_versions import CACHE_PATH, RetainedVersions
from memwal.store.run_records import StoredRunRecords, record_path
from memwal.store.snapshots import to_lance_bytes, to_table
from memwal.store.wal import WalEntries
from memwal.testing import ManualClock, MemoryObjects

SHARD = ShardId("11111111-1111-4111-8111-111111111111")
EXAMPLES = settings(
    max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with one to four wounds."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        kind = draw(st.sampled_from(["flip", "cut", "put", "double", "zero", "huge"]))
        if kind == "flip" and found:
            found[at] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del found[at : at + draw(st.integers(1, 64))]
        elif kind == "put":
            found[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "double":
            found[at:at] = found[at : at + draw(st.integers(1, 64))]
        else:
            size = draw(st.sampled_from([1, 2, 4, 8]))
            found[at : at + size] = (b"\0" if kind == "zero" else b"\xff") * size
    return bytes(found)


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=10),
    st.just("9" * 5000),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


@st.composite
def odd_json(draw: st.DrawFn, document: dict[str, Any]) -> bytes:
    """The document with odd values, keys that are gone, or not a document at all."""
    kind = draw(st.sampled_from(["values", "values", "values", "other", "deep", "bytes"]))
    if kind == "other":
        return json.dumps(draw(ODD_VALUES)).encode()
    if kind == "deep":
        return b"[" * 100_000
    if kind == "bytes":
        return draw(damaged(json.dumps(document).encode()))
    changed = dict(document)
    for name in draw(st.lists(st.sampled_from(sorted(document)), min_size=1, max_size=3)):
        if draw(st.booleans()):
            changed[name] = draw(ODD_VALUES)
        else:
            changed.pop(name, None)
    if draw(st.booleans()):
        changed[draw(st.text(max_size=5))] = draw(ODD_VALUES)
    return json.dumps(changed).encode()


# ---- lease claims

CLAIM = LeaseClaim(
    token=3,
    claim_id="22222222-2222-4222-8222-222222222222",
    holder="user@host:1",
    job="merge",
    acquired_at_nanos=1_750_000_000_000_000_000,
    expires_at_nanos=1_750_000_300_000_000_000,
)


@EXAMPLES
@given(odd_json(asdict(CLAIM)), odd_json({"token": 3}))
def test_lease_claims(claim: bytes, hint: bytes) -> None:
    objects = MemoryObjects(clock=ManualClock())
    objects.put(claim_path(3), claim)
    objects.put(f"{FOLDER}/hint.json", hint)
    leases = StoredLeases(objects, ManualClock(), holder="me")
    before = dict(objects.bucket.objects)

    for act in (leases.current, lambda: leases.check(2), lambda: leases.acquire("merge")):
        try:
            act()
        except MemWalError as error:
            assert error.exit_code in (4, 8)
            assert "memory://table" in str(error)

    written = objects.bucket.objects.keys() - before.keys()
    assert written <= {claim_path(4)}, "only the next claim may be written"


# ---- run records

RECORD = RunRecord(
    run_id="a" * 32,
    job="merge",
    started_at="2026-11-21T10:00:00+00:00",
    finished_at="2026-11-21T10:00:05+00:00",
    seconds=5.0,
    outcome="done",
    exit_code=0,
    holder="user@host:1",
)


@EXAMPLES
@given(odd_json(RECORD.model_dump()))
def test_run_records(data: bytes) -> None:
    objects = MemoryObjects()
    objects.put(record_path(RECORD), data)

    found = StoredRunRecords(objects, readers_max=1).newest(10)

    assert len(found.records) + found.unreadable == 1


# ---- what is remembered of retained versions

CACHE = {"format": 1, "sha256": "0" * 64, "entries": [{"path": "_versions/1.manifest"}]}


@EXAMPLES
@given(odd_json(CACHE), odd_json({"branch": None, "version": 1}))
def test_remembered_versions_and_tags(cache: bytes, tag: bytes) -> None:
    objects = MemoryObjects()
    objects.put(CACHE_PATH, cache)
    objects.put("_refs/tags/one.json", tag)
    retained = RetainedVersions(objects, readers_max=1)

    versions, problems = retained.all(verified=False)

    assert (versions, problems) == ((), [])
    assert all(isinstance(number, int) for number in retained.referenced())


# ---- WAL entries


def wal_entry() -> bytes:
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("text", pa.string())],
        metadata={"writer_epoch": "4", "generation": "2"},
    )
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as stream:
        for start in (0, 50):
            ids = list(range(start, start + 50))
            stream.write_batch(
                pa.record_batch([pa.array(ids), pa.array([f"t{i}" for i in ids])], schema=schema)
            )
    return out.getvalue()


@EXAMPLES
@given(damaged(wal_entry()))
def test_wal_entries(data: bytes) -> None:
    objects = MemoryObjects()
    path = layout.wal_entry_path(SHARD, 7)
    objects.put(path, data)
    entries = WalEntries(objects)
    before = pa.total_allocated_bytes()

    for read in (lambda: entries.rows(SHARD, 7), lambda: entries.head(path, len(data))):
        try:
            read()
        except (Corruption, Refused) as error:
            assert path in str(error)

    assert pa.total_allocated_bytes() - before < 10_000_000


# ---- snapshots


def snapshot() -> bytes:
    row = SnapshotRow(
        shard_id=SHARD,
        version=4,
        shard_spec_id=0,
        writer_epoch=1,
        replay_after_wal_entry_position=10,
        wal_entry_position_last_seen=11,
        current_generation=3,
        flushed_generations=((1, "0000000a_gen_1"), (2, "0000000b_gen_2")),
        shard_fields={},
    )
    return to_lance_bytes(to_table([row] * 5, []))


# ---- configuration

CONFIG = b"""
[defaults]
bytes_per_commit_max = 268435456
[tables.orders]
uri = "s3://lake/orders"
engine = "spark"
[tables.orders.storage_options]
aws_region = "eu-central-1"
[airflow]
merge_schedule = "*/5 * * * *"
"""


@EXAMPLES
@given(damaged(CONFIG))
def test_configuration(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memwal.toml"
        file.write_bytes(data)
        try:
            config = load_config(str(file), {})
        except Usage as error:
            assert str(file) in str(error)
        else:
            assert all(isinstance(table.uri, str) for table in config.tables.values())


# ---- names


@pytest.mark.parametrize(
    "parse",
    [
        layout.parse_shard_manifest_name,
        layout.parse_wal_entry_name,
        layout.parse_table_manifest_name,
        layout.parse_generation_folder,
        layout.parse_run_record_name,
    ],
)
@EXAMPLES
@given(
    st.text(max_size=90)
    | st.sampled_from(["../../x", "0" * 64, "1" * 64 + ".arrow", "00000001_gen_1/../x"])
)
def test_names(parse: Callable[[str], object], name: str) -> None:
    found = parse(name)

    if found is not None:
        assert "/" not in name
        assert ".." not in name
        assert name.isascii()


def test_a_missing_file_is_missing() -> None:
    with pytest.raises(Missing):
        WalEntries(MemoryObjects()).rows(SHARD, 1)
