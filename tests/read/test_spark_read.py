"""The merging read as a Spark data source, against the plain model, row by row.

What a task does is tested without a JVM: `through_tasks` pickles everything that Spark would. What
Spark makes of it has tests of its own, marked `spark`, on one session.
"""

from __future__ import annotations

import datetime
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from memwal.errors import Refused, StoreUnavailable, Unsupported, Usage
from memwal.jobs.merge.request import MergeRequest
from memwal.read import open_table
from memwal.read import spark as memwal_spark
from memwal.read.spark import MemWalDataSource, MemWalPartition, MemWalReader
from memwal.rows.expire import EXPIRE_KEY, make_expire
from tests.read.test_read_random import FILTERS, random_table
from tests.read.test_read_shapes import drop
from tests.support import builders
from tests.support.builders import KINDS, Delete, Put, Row, Table
from tests.support.lsm_reads import lsm_read
from tests.support.s3server import S3Server
from tests.support.sampling import seeds
from tests.support.spark import spark_session

pytestmark = pytest.mark.integration

DECIDED = {"keys_bytes_max": "1000000000"}
LOOKED_UP = {"keys_bytes_max": "1"}
WAYS = pytest.mark.parametrize("way", [DECIDED, LOOKED_UP], ids=["decided", "looked up"])


def loaded(uri: str, **options: str) -> MemWalDataSource:
    """What Spark has after `load()`."""
    given = CaseInsensitiveDict({"path": uri, **options})
    found: MemWalDataSource = pickle.loads(pickle.dumps(MemWalDataSource(given)))
    return found


def planned(source: MemWalDataSource) -> tuple[MemWalReader, list[MemWalPartition]]:
    """What Spark has once a query is planned."""
    reader = source.reader(source.schema())
    sent = pickle.dumps(reader)
    partitions = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]
    return pickle.loads(sent), partitions


def carried_out(source: MemWalDataSource) -> list[Row]:
    return rows_of_tasks(*planned(source))


def rows_of_tasks(reader: MemWalReader, partitions: list[MemWalPartition]) -> list[Row]:
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def through_tasks(uri: str, **options: str) -> list[Row]:
    """The rows that Spark's tasks read, in their order."""
    return carried_out(loaded(uri, **options))


def in_order(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


def comparable(table: Table, rows: list[Row]) -> list[Row]:
    """Rows of Spark's types as the model has them: uint64 came as decimal(20, 0)."""
    wide = {name for name, kind in table.kind.columns if pa.types.is_uint64(kind)}
    return [{k: int(v) if k in wide else v for k, v in row.items()} for row in rows]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Keys 2 to 9 in the base, with `n` from 1002 to 1009, and one shard."""
    return builders.make_table(tmp_path / "t", rows=range(2, 10))


def numbers(table: Table, **options: str) -> list[int]:
    return sorted(row["n"] for row in through_tasks(table.uri, **{"columns": "n", **options}))


# ---- who wins


@pytest.mark.nightly
@pytest.mark.parametrize("seed", seeds(2, 1), ids=lambda seed: f"seed={seed}")
def test_every_read_gives_the_model_at_every_version(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = random_table(tmp_path, rng.choice(list(KINDS)), rng)
    truth = table.truth().values()
    versions = [v for v in table.versions() if table.stores.table_manifests.read(v).mem_wal]
    assert len(versions) >= 2
    for version in versions:
        for (text, matches), way in product(FILTERS, (DECIDED, LOOKED_UP)):
            cut = rng.choice([{}, {"partition_bytes": "1"}, {"partition_bytes": "3000"}])
            options = {**way, **cut, "version": str(version)}
            asked = options if text is None else {**options, "filter": text}
            wanted = [row for row in truth if matches(row)]
            names = rng.choice([None, ["nested", "n"]])
            if names is not None:  # without the key
                wanted = [{name: row[name] for name in names} for row in wanted]
                asked |= {"columns": ", ".join(names)}
            found = comparable(table, through_tasks(table.uri, **asked))
            assert in_order(found) == in_order(wanted), f"{asked} at version {version}"


# Spark has no unsigned integers; of the others, one is read as any.
SOME = ("int64", "utf8", "bool+uint64")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in SOME else pytest.mark.nightly) for k in KINDS]
)
def test_every_kind_of_key(tmp_path: Path, kind: str) -> None:
    table = random_table(tmp_path, kind, random.Random(kind))
    wanted = in_order(list(table.truth().values()))
    for way in (DECIDED, LOOKED_UP):
        found = through_tasks(table.uri, partition_bytes="1", **way)
        assert in_order(comparable(table, found)) == wanted, way


@WAYS
def test_a_filter_does_not_bring_an_older_row_back(table: Table, way: dict[str, str]) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    table.flush(shard, Put([2], 2), Delete([3]))
    for stale in ("n = 1002", "n = 1", "n = 1003"):
        assert numbers(table, filter=stale, **way) == []
    assert numbers(table, filter="n = 2", **way) == [2]


@WAYS
def test_the_highest_row_address_of_a_generation_wins(table: Table, way: dict[str, str]) -> None:
    """A writer may leave several rows of a key in a generation."""
    (shard,) = table.shards
    rows = [table.row(2, 1), table.row(2, 2), table.row(20, 3), table.row(20, 4)]
    dead = [False, False, False, True]
    written = builders.hand_written(table, shard, rows, tombstones=dead, rows_per_file=1)
    builders.list_generations(table, shard, written)
    assert numbers(table, filter="n < 9", **way) == [2]
    assert numbers(table, filter="n = 1", **way) == []


@WAYS
def test_a_merged_generation_that_is_still_listed_hides_nothing(
    table: Table, way: dict[str, str]
) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    table.merge_all()
    table.dataset.update({"n": "7"}, where="n = 1")
    assert numbers(table, filter="n < 9", **way) == [7]


@WAYS
def test_a_table_without_a_key_gives_every_row(tmp_path: Path, way: dict[str, str]) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"a": [1, 2]}), uri)
    dataset.initialize_mem_wal()
    with dataset.mem_wal_writer("5b6ccd37-c9e6-4f9f-a4b2-7ae3fc8f4a3f") as writer:
        writer.put(pa.table({"a": [2, 2, 3]}))
    assert sorted(r["a"] for r in through_tasks(uri, **way)) == [1, 2, 2, 2, 3]
    assert [r["a"] for r in through_tasks(uri, filter="a = 2", **way)] == [2, 2, 2]


@WAYS
def test_null_keys_are_refused(tmp_path: Path, way: dict[str, str]) -> None:
    table = builders.make_table(tmp_path / "t", rows=[2])
    (shard,) = table.shards
    loose = pa.schema([pa.field("k", pa.int64()), *builders.PAYLOAD])
    rows = pa.Table.from_pylist([table.row(3, 1), {**table.row(4, 2), "k": None}], schema=loose)
    builders.list_generations(table, shard, builders.hand_written(table, shard, rows))
    with pytest.raises(Refused, match="NULL in the key column 'k'"):
        through_tasks(table.uri, **way)


@WAYS
def test_generations_of_an_older_schema(table: Table, way: dict[str, str]) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 3], 100))
    table.dataset.add_columns(pa.field("more", pa.int64()))
    table.flush(shard, Put([3], 200, {"more": 5}))
    table.dataset.drop_columns(["vector"])
    found = {row["k"]: row for row in through_tasks(table.uri, **way)}
    assert found == {row["k"]: row for row in open_table(table.uri).read().read_all().to_pylist()}
    assert [found[builders.KINDS["int64"].key(key)[0]]["more"] for key in (2, 3)] == [None, 5]
    assert numbers(table, filter="more IS NULL AND n < 1000", **way) == [100]


# ---- how it is cut


def test_a_task_for_each_fragment_and_generation_at_most(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(40), shards=2, max_rows_per_file=4)
    for n in range(3):
        for place, shard in enumerate(table.shards):
            table.flush(shard, Put([place], n))
    _, finest = planned(loaded(table.uri, partition_bytes="1"))
    assert len(finest) == 10 + 6
    assert [len(p.task.generations) for p in finest[:6]] == [1] * 6
    _, one_each = planned(loaded(table.uri))
    assert [len(p.task.generations) for p in one_each] == [6, 0]
    assert one_each[1].task.fragments == tuple(range(10))


def test_an_empty_table_has_one_task(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[])
    _, partitions = planned(loaded(table.uri))
    assert len(partitions) == 1
    assert through_tasks(table.uri) == []


def test_keys_are_sent_once_and_only_while_they_are_few(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put(range(20_000, 40_000), 1))
    source = loaded(table.uri)
    reader, partitions = planned(source)
    sent = len(pickle.dumps(reader))
    # Eight bytes a key; winners that are neighbours take next to nothing.
    assert 8 * 20_000 < sent < 10 * 20_000
    assert max(len(pickle.dumps(part)) for part in partitions) < 4_000
    # A key, its row address and its tombstone take 16.2 bytes.
    for most, small in ((16 * 20_000, True), (17 * 20_000, False)):
        reader, _ = planned(loaded(table.uri, keys_bytes_max=str(most)))
        assert (len(pickle.dumps(reader)) < 10_000) is small


# ---- one moment's table


@WAYS
def test_what_is_read_is_settled_at_load(table: Table, way: dict[str, str]) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1), Delete([3]))
    source, truth = loaded(table.uri, **way), in_order(list(table.truth().values()))
    table.flush(shard, Put([2, 4], 100))
    table.merge_all()
    reader, partitions = planned(source)
    table.dataset.delete("n > 0")
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert in_order(rows) == truth
    assert numbers(table) == []


@WAYS
def test_a_generation_that_is_collected_since_is_an_error(
    table: Table, way: dict[str, str]
) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1), Delete([3]))
    loads = loaded(table.uri, **way)
    reader, partitions = planned(loads)
    listed = table.stores.shard_manifests.latest(shard)
    assert listed is not None
    name = listed.flushed_generations[0].path
    table.merge_all()
    drop(table, shard)
    wanted = rf"{shard}.*{name}.*Load the DataFrame again"
    with pytest.raises(StoreUnavailable, match=wanted):
        list(reader.read(partitions[0]))
    if way is DECIDED:
        with pytest.raises(StoreUnavailable, match=wanted):
            planned(loads)
        # The base's rows were decided without it.
        assert len([r for b in reader.read(partitions[1]) for r in b.to_pylist()]) == 6
    else:
        with pytest.raises(StoreUnavailable, match=wanted):
            list(reader.read(partitions[1]))
    assert in_order(through_tasks(table.uri, **way)) == in_order(list(table.truth().values()))


def test_a_version_that_is_expired_since_is_an_error(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    source = loaded(table.uri)
    reader, partitions = planned(source)
    table.merge_all()
    table.dataset.cleanup_old_versions(datetime.timedelta(0), delete_unverified=True)
    with pytest.raises(StoreUnavailable, match="Load the DataFrame again"):
        list(reader.read(partitions[-1]))
    with pytest.raises(StoreUnavailable, match="Load the DataFrame again"):
        planned(source)


def test_another_table_in_the_same_place_is_an_error(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(6), max_rows_per_file=2)
    reader, partitions = planned(loaded(table.uri))
    shutil.rmtree(table.uri)
    builders.make_table(tmp_path / "t", rows=range(2))
    with pytest.raises(StoreUnavailable, match="Load the DataFrame again"):
        list(reader.read(partitions[-1]))


# ---- types


STAMP = datetime.datetime(2026, 11, 21, 4, 5, 6, 789012)
UTC_STAMP = STAMP.replace(tzinfo=datetime.timezone.utc)  # noqa: UP017
NESTED = pa.struct([("u", pa.uint8()), ("l", pa.large_list(pa.large_string()))])

# A column: its type, a value, and what Spark has to show when that is not the same.
TYPES: dict[str, tuple[pa.DataType, Any] | tuple[pa.DataType, Any, Any]] = {
    "boolean": (pa.bool_(), True),
    **{f"i{bits}": (getattr(pa, f"int{bits}")(), -(2 ** (bits - 1))) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": (getattr(pa, f"uint{bits}")(), 2**bits - 1) for bits in (8, 16, 32)},
    "u64": (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
    "f16": (pa.float16(), 1.5),
    "f32": (pa.float32(), -0.5),
    "f64": (pa.float64(), 1e300),
    "large_text": (pa.large_string(), "Ω"),
    "bytes": (pa.binary(), b"\0\xff"),
    "large_bytes": (pa.large_binary(), b""),
    "fixed_bytes": (pa.binary(2), b"ab"),
    "day": (pa.date32(), STAMP.date()),
    "day64": (pa.date64(), STAMP.date()),
    "at": (pa.timestamp("us", "Asia/Tokyo"), UTC_STAMP),
    "at_ns": (pa.timestamp("ns", "UTC"), UTC_STAMP),
    "local": (pa.timestamp("us"), STAMP),
    "local_s": (pa.timestamp("s"), STAMP.replace(microsecond=0)),
    "time": (pa.time64("us"), STAMP.time()),
    "time_ms": (pa.time32("ms"), datetime.time(1, 2, 3, 4000)),
    "span": (pa.duration("us"), datetime.timedelta(days=-1, microseconds=1)),
    "money": (pa.decimal128(38, 2), Decimal("-123456789.01")),
    "money256": (pa.decimal256(20, 20), Decimal("0.00000000000000000001")),
    "vector": (pa.list_(pa.float32(), 3), [1.0, -2.0, 0.25]),
    "half_vector": (pa.list_(pa.float16(), 2), [0.5, 1.0]),
    "lists": (pa.list_(pa.list_(pa.uint64())), [[2**63], [], None], [[Decimal(2**63)], [], None]),
    "nested": (NESTED, {"u": 255, "l": ["a", None]}),
    "structs": (pa.list_(NESTED), [{"u": None, "l": []}, None]),
    "word": (pa.dictionary(pa.int32(), pa.string()), "w"),
}


def typed(folder: Path, types: Mapping[str, Any] = TYPES) -> tuple[str, dict[int, Row]]:
    """A table of one row in the base and one in a generation, and a row of NULLs in each."""
    uri = str(folder / "t")
    schema = pa.schema(
        [*KINDS["int64"].fields, *(pa.field(name, kind[0]) for name, kind in types.items())]
    )
    values = {name: kind[1] for name, kind in types.items()}
    rows = [[{"k": k, **values}, {"k": k + 1}] for k in (1, 3)]
    # A date64 can't be made from a list of rows without one.
    data = [
        pa.table(
            [pa.array([row.get(f.name) for row in some], f.type) for f in schema], schema=schema
        )
        for some in rows
    ]
    lance.write_dataset(data[0], uri, data_storage_version="2.2").initialize_mem_wal()
    with lance.dataset(uri).mem_wal_writer("5b6ccd37-c9e6-4f9f-a4b2-7ae3fc8f4a3f") as writer:
        writer.put(data[1])
    shown = {name: kind[-1] for name, kind in types.items()}
    full = {k: {"k": k, **shown} for k in (1, 3)}
    return uri, full | {k: {"k": k, **dict.fromkeys(shown)} for k in (2, 4)}


def test_a_type_that_spark_has_not_got_names_the_column(tmp_path: Path) -> None:
    types = {"at": TYPES["at"], "huge": (pa.decimal256(50, 0), Decimal(1))}
    uri, _ = typed(tmp_path, types)
    with pytest.raises(Unsupported, match=r"column 'huge': .*decimal256\(50, 0\)"):
        loaded(uri).schema()
    assert len(through_tasks(uri, columns="at,k")) == 4


def test_a_value_that_spark_can_not_hold_names_the_column(tmp_path: Path) -> None:
    uri, _ = typed(tmp_path, {"at": (pa.timestamp("ns"), 1001)})
    with pytest.raises(Refused, match=r"column 'at' .*1001.*option `columns`"):
        through_tasks(uri)
    assert len(through_tasks(uri, columns="k")) == 4
    assert len(through_tasks(uri, filter="at IS NULL")) == 2


def test_blobs_are_bytes(tmp_path: Path) -> None:
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([*KINDS["int64"].fields, blob])
    uri = str(tmp_path / "t")
    base = pa.table([[2, 3], [b"base 2", b"base 3"]], schema=schema)
    lance.write_dataset(base, uri, data_storage_version="2.1").initialize_mem_wal()
    with lance.dataset(uri).mem_wal_writer("5b6ccd37-c9e6-4f9f-a4b2-7ae3fc8f4a3f") as writer:
        writer.put(pa.table([[3, 4], [b"new 3", b"new 4"]], schema=schema))
    found = {row["k"]: row["blob"] for row in through_tasks(uri)}
    assert found == {2: b"base 2", 3: b"new 3", 4: b"new 4"}


# ---- requests


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": "nope"}, "no column 'nope'"),
        ({"columns": ""}, "columns must be named"),
        ({"columns": "n,n"}, "each of them once"),
        ({"filter": "n +"}, "Error parsing"),
        ({"filter": "_rowid = 1"}, "can't use '_rowid'"),
        ({"filter": "n = 1) OR (n = 2"}, "not closed"),
        ({"version": "99"}, "no version 99"),
    ],
)
def test_a_wrong_request_fails_at_load(table: Table, options: dict[str, str], text: str) -> None:
    with pytest.raises(Usage, match=text):
        loaded(table.uri, **options)


# ---- in Spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(
        spark_eventLog_enabled="true",
        spark_eventLog_dir=f"file://{tmp_path_factory.mktemp('event-log')}",
        spark_eventLog_compress="false",
        spark_sql_redaction_options_regex="(?i)mine",
    ) as session:
        yield session


def rows_of(frame: DataFrame) -> list[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


@pytest.mark.spark
@pytest.mark.parametrize("seed", seeds(2, 1), ids=lambda seed: f"seed={seed}")
def test_a_dataframe_is_the_model(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Joined with itself, too: filtered and not, through Spark's filter and through ours."""
    rng = random.Random(100 + seed)
    table = random_table(tmp_path, rng.choice(["int64", "utf8+int32", "binary"]), rng)
    truth, keys = list(table.truth().values()), list(table.kind.names)
    frame = spark.read.format("memwal").options(**rng.choice([DECIDED, LOOKED_UP])).load(table.uri)
    small = frame.filter("n < 1000")
    ours = memwal_spark.read(
        spark, table.uri, filter="n < 1000", columns=[*keys, "n"], partition_bytes=1
    ).withColumnRenamed("n", "m")
    assert in_order(rows_of(frame)) == in_order(truth)
    wanted = [row for row in truth if row["n"] < 1000]
    assert in_order(rows_of(small)) == in_order(wanted)
    assert in_order(rows_of(frame)) == in_order(truth)
    both = frame.join(small.select(*keys), keys, "left_semi").join(ours, keys)
    assert in_order(rows_of(both)) == in_order([{**row, "m": row["n"]} for row in wanted])
    assert frame.unionAll(small).count() == len(truth) + len(wanted)
    versions = [v for v in table.versions() if table.stores.table_manifests.read(v).mem_wal]
    for version in versions[:2]:
        before = memwal_spark.read(spark, table.uri, version=version, columns=["n"])
        assert sorted(r.n for r in before.collect()) == sorted(row["n"] for row in truth)


@pytest.mark.spark
def test_an_old_version_with_what_was_pending_then(spark: SparkSession, table: Table) -> None:
    """The truth of a version is the same as of the latest, as long as it is only merged."""
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1))
    before = int(table.dataset.version)
    table.merge_all()
    table.dataset.delete("n = 1")
    old = memwal_spark.read(spark, table.uri, version=before, filter="n < 9", columns=["n"])
    assert sorted(row.n for row in old.collect()) == [1, 2]
    new = memwal_spark.read(spark, table.uri, filter="n < 9", columns=["n"])
    assert [row.n for row in new.collect()] == [2]


@pytest.mark.spark
def test_every_type(spark: SparkSession, tmp_path: Path) -> None:
    uri, wanted = typed(tmp_path)
    frame = spark.read.format("memwal").load(uri)
    assert frame.schema["vector"].dataType.simpleString() == "array<float>"
    # toArrow() keeps time zones, which rows in Python do not.
    found = {row["k"]: row for row in frame.toArrow().to_pylist()}
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        assert found[key] == row
    assert frame.selectExpr("sum(size(vector))").first()[0] == 2 * 3


@pytest.mark.spark
def test_partitions_scale_with_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(40), shards=2, max_rows_per_file=4)
    for place, shard in enumerate(table.shards):
        table.flush(shard, Put([place], 1))
    fine = spark.read.format("memwal").option("partition_bytes", 1).load(table.uri)
    assert fine.rdd.getNumPartitions() == 10 + 2
    assert fine.count() == 40
    assert spark.read.format("memwal").load(table.uri).rdd.getNumPartitions() == 2


@pytest.mark.spark
def test_one_dataframe_is_one_moment(spark: SparkSession, table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1), Delete([3]))
    truth = in_order(list(table.truth().values()))
    frame = spark.read.format("memwal").load(table.uri)
    assert in_order(rows_of(frame)) == truth
    table.flush(shard, Put([2, 4], 100))
    table.merge_all()
    table.dataset.delete("n > 0")
    assert in_order(rows_of(frame)) == truth
    assert frame.filter("n = 1").count() == 1
    assert spark.read.format("memwal").load(table.uri).count() == 0
    drop(table, shard)
    with pytest.raises(PySparkException, match=rf"{shard}.*Load the DataFrame again"):
        frame.count()


@pytest.mark.spark
@WAYS
def test_all_tasks_hide_what_had_expired_at_load(
    spark: SparkSession, tmp_path: Path, way: dict[str, str]
) -> None:
    """Two fragments and two generations have the same rows, of which one more expires each 5 s."""
    at = pa.field("at", pa.timestamp("s", "UTC"))
    table = builders.make_table(tmp_path / "t", columns=[at])
    table.dataset.update_config({EXPIRE_KEY: make_expire("at", 1).as_text()})
    began, (shard,) = time.time(), table.shards
    expiring = [
        datetime.datetime.fromtimestamp(began + s, datetime.UTC) for s in range(-40, 460, 5)
    ]
    for first in (0, 100, 200, 300):
        table.flush(shard, *(Put([n], n, {"at": t}) for n, t in enumerate(expiring, first)))
        if first < 200:
            table.merge_all()

    def load() -> DataFrame:
        options = {"columns": "n", "partition_bytes": "1", **way}
        return spark.read.format("memwal").options(**options).load(table.uri)

    frame = load()
    assert frame.rdd.getNumPartitions() == 4
    shown = sorted(row.n for row in frame.collect())
    first = shown[0]
    assert 7 < first < 99
    assert shown == [part + n for part in (0, 100, 200, 300) for n in range(first, 100)]
    time.sleep(max(0.0, began - 40 + 5 * first + 3 - time.time()))
    assert sorted(row.n for row in frame.collect()) == shown
    assert load().count() < len(shown)


@pytest.mark.spark
def test_a_schema_of_the_users_chooses_columns(spark: SparkSession, table: Table) -> None:
    table.flush(table.shards[0], Put([2], 1))
    frame = spark.read.format("memwal").schema("vector array<float>, n long").load(table.uri)
    assert frame.columns == ["vector", "n"]
    wanted = [{"vector": row["vector"], "n": row["n"]} for row in table.truth().values()]
    assert in_order(rows_of(frame)) == in_order(wanted)
    for wrong, text in (("n int", "another type"), ("m long", "column 'm'")):
        with pytest.raises(PySparkException, match=text):
            spark.read.format("memwal").schema(wrong).load(table.uri).count()


@pytest.mark.spark
def test_from_sql(spark: SparkSession, table: Table) -> None:
    table.flush(table.shards[0], Put([2], 1))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW rows USING memwal "
        f"OPTIONS (path '{table.uri}', columns 'n', filter 'n < 1004')"
    )
    assert [row.n for row in spark.sql("SELECT n FROM rows ORDER BY n").collect()] == [1, 1003]


@pytest.mark.spark
def test_from_sql_by_a_name_in_a_namespace(spark: SparkSession, table: Table) -> None:
    folder = Path(table.uri).parent
    Path(table.uri).rename(folder / "t.lance")
    config = folder / "memwal.toml"
    config.write_text(f'[namespaces.lake]\nimpl = "dir"\nroot = "{folder}"\n')
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW near USING memwal "
        f"OPTIONS (path 'lake:t', config '{config}', nearest 'vector=[0, 0, 0, 0]', k '2')"
    )
    found = spark.sql("SELECT n, _distance FROM near").collect()
    assert [row.n for row in found] == [1002, 1003]
    assert found[0]["_distance"] < found[1]["_distance"]


def evolve(table: Table) -> Iterator[str]:
    """The table after each of these; pylance takes no other change of columns beside a MemWAL."""
    one, two = table.shards
    table.flush(one, Put([0, 2, 20], 100), Delete([4]))
    table.dataset.add_columns(pa.field("more", pa.int64()))
    table.flush(two, Put([1, 21], 200, {"more": 5}), Delete([3]))
    yield "a column is new"
    table.merge_all()  # columns have other names only where no row waits
    table.dataset.alter_columns({"path": "text", "name": "words"})
    table.dataset.drop_columns(["nested"])
    table.flush(one, Put([2, 22], 300, {"more": 7}))
    yield "all is merged, a column has another name, and one is gone"


@pytest.mark.spark
def test_queries_agree_with_pylance_s_read_while_columns_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(8), shards=2)
    kept: list[tuple[DataFrame, list[str]]] = []
    for step in evolve(table):
        rows = lsm_read(table.uri).to_pylist()
        frame = memwal_spark.read(spark, table.uri, partition_bytes=1).cache()
        assert in_order(rows_of(frame)) == in_order(rows), step
        kept.append((frame, in_order(rows)))
        memwal_spark.read(spark, table.uri).createOrReplaceTempView("evolving")
        (total,) = spark.sql(
            "SELECT count(*) rows, sum(n) n, sum(more) more, count(more) m FROM evolving"
        ).collect()
        more = [row["more"] for row in rows if row["more"] is not None]
        wanted = (len(rows), sum(row["n"] for row in rows), sum(more) if more else None, len(more))
        assert tuple(total) == wanted, step
        # With itself, filtered on one side, and against what was cached before all the changes.
        next_to = spark.sql(
            "SELECT a.k, b.n FROM evolving a JOIN evolving b ON a.n = b.n + 1 WHERE b.n > 1000"
        )
        by_n = {row["n"]: row for row in rows}
        assert in_order(rows_of(next_to)) == in_order(
            [{"k": by_n[n + 1]["k"], "n": n} for n in by_n if n > 1000 and n + 1 in by_n]
        ), step
        first = {row.k for row in kept[0][0].select("k").collect()}
        new = spark.table("evolving").join(kept[0][0].select("k"), "k", "left_anti")
        assert {row.k for row in new.collect()} == {row["k"] for row in rows} - first, step
    table.merge_all()
    for frame, before in kept:
        assert in_order(rows_of(frame)) == before
        frame.unpersist()


@pytest.mark.spark
def test_through_spark_connect(table: Table) -> None:
    """Whatever a server forgets, a view keeps its moment."""
    pytest.importorskip("grpc_status")
    table.flush(table.shards[0], Put([2, 20], 1), Delete([3]))
    before = lsm_read(table.uri, columns=["k", "n"]).to_pylist()
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.connect_queries", table.uri, table.shards[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    ) as run:
        assert run.stdin is not None and run.stdout is not None
        assert run.stdout.readline() == "changed\n"
        table.flush(table.shards[0], Put([21], 100))
        after = lsm_read(table.uri, columns=["k", "n"]).to_pylist()
        found = json.loads(run.communicate("\n")[0])
    assert in_order(found["before"]) == in_order(found["view"]) == in_order(before)
    assert in_order(found["after"]) == in_order(after) != in_order(before)
    by_n = {row["n"]: row["k"] for row in before}
    wanted = [{"k": by_n[n + 1], "n": n} for n in by_n if n + 1 in by_n]
    assert in_order(found["join"]) == in_order(wanted) != []
    assert [row["n"] for row in found["nearest"]] == [1]
    assert found["redacted"] == r"(?i:^storage\.)"
    assert "there is no option 'colums' (is columns meant?)" in found["error"]
    assert in_order(lsm_read(table.uri, columns=["k", "n"]).to_pylist()) == in_order(
        [*after, *({"k": row["k"] + 1000, "n": 100} for row in after if row["n"] == 100)]
    )


@pytest.mark.spark
def test_secrets_on_s3_stay_out_of_plans(
    spark: SparkSession, make_s3_uri: Callable[[], str], s3_server: S3Server
) -> None:
    options = s3_server.storage_options
    table = builders.make_table(make_s3_uri(), rows=range(4), shards=2, options=options)
    table.flush(table.shards[0], Put([0, 2], 1), Delete([2]))
    table.flush(table.shards[1], Put([1], 10))
    table.merger().run(table.shards[1], MergeRequest())
    frame = memwal_spark.read(spark, table.uri, storage_options=options, filter="n < 9999")
    assert in_order(rows_of(frame)) == in_order(list(table.truth().values()))
    execution = frame._jdf.queryExecution()
    texts = [
        execution.toString(),
        *(p.toJSON() for p in (execution.logical(), execution.optimizedPlan())),
        execution.executedPlan().toJSON(),
        execution.explainString(
            spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
        ),
    ]
    assert "BatchScan memwal" in texts[0]
    for secret in (options["aws_access_key_id"], options["aws_secret_access_key"]):
        assert not any(secret in text for text in texts)


@pytest.mark.spark
def test_no_storage_option_is_in_the_event_log_whatever_its_name(
    spark: SparkSession, table: Table
) -> None:
    options = {"account_name": "hush-hush", "Azure_Storage_Account_Name": "hush-hush"}
    memwal_spark.read(spark, table.uri, storage_options=options).createOrReplaceTempView("loaded")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW made USING memwal "
        f"OPTIONS (path '{table.uri}', 'STORAGE.account_name' 'hush-hush')"
    )
    spark.sql("SELECT n FROM loaded").explain(True)
    folder = Path(spark.conf.get("spark.eventLog.dir", "").removeprefix("file://"))
    text = "".join(file.read_text() for file in folder.rglob("events_*"))
    assert "CreateTempViewUsing" in text
    assert "DataSourceV2Relation" in text
    assert text.count("storage.account_name=*********(redacted)") >= 1
    assert "hush-hush" not in text
    # What the session redacted before it still does.
    assert spark.conf.get("spark.sql.redaction.options.regex") == r"(?i)mine|(?i:^storage\.)"


@pytest.mark.spark
def test_a_wrong_request_is_spark_s_error_with_our_text(spark: SparkSession, table: Table) -> None:
    with pytest.raises(PySparkException, match="no column 'nope'") as error:
        memwal_spark.read(
            spark, table.uri, columns=["nope"], storage_options={"aws_secret_access_key": "psst"}
        )
    assert "psst" not in str(error.value)


def test_the_driver_s_own_process_imports_no_lance() -> None:
    code = "import sys, memwal.read.spark; print('lance' in sys.modules, 'pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True"]
