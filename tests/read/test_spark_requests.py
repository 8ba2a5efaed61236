"""What a Spark load can ask for besides rows: the nearest, rows of the WAL, tables by their names.

Spark's tasks without a JVM, against the read in one process.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.config.namespaces import OPTION
from memwal.errors import MemWalError, NotATable, Refused, StoreUnavailable, Usage
from memwal.jobs.merge.request import MergeRequest
from memwal.read import Nearest, open_table
from tests.read.test_spark_read import (
    carried_out,
    in_order,
    loaded,
    planned,
    through_tasks,
)
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.namespace_server import TOKEN, NamespaceServer
from tests.support.policy_tables import Variant, make_policy_table
from tests.support.s3server import S3Server
from tests.support.wal_tables import abandon

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two shards: one with merged, pending and unflushed rows, the other with unflushed alone."""
    table = builders.make_table(tmp_path / "t", rows=range(10), shards=2)
    one, two = table.shards
    table.flush(one, Put([0, 2, 20], 100), Delete([4]))
    assert table.merger().run(one, MergeRequest()).outcome == "done"
    table.flush(one, Put([0, 4, 22], 200), Delete([2]))
    table.flush(one, Put(range(1000, 3000), 5000))
    abandon(table, one, Put([2, 6, 24], 300), Delete([0, 22]))
    abandon(table, two, Put([1, 31, 31], 400), Delete([3]))
    return table


LOOKED_UP = {"keys_bytes_max": "20000"}
"""More than the rows of the WAL take, and less than the keys of all that is pending."""


@pytest.mark.parametrize("way", [{}, LOOKED_UP], ids=["decided", "looked up"])
@pytest.mark.parametrize("cut", [{}, {"partition_bytes": "1"}], ids=["whole", "cut"])
def test_rows_of_the_wal_are_newer_than_all_generations(
    table: Table, way: dict[str, str], cut: dict[str, str]
) -> None:
    truth = list(table.truth().values())
    asked = {"with_wal": "true", **way, **cut}
    assert in_order(through_tasks(table.uri, **asked)) == in_order(truth)
    for text, matches in (
        ("n >= 300 AND n < 500", lambda row: 300 <= row["n"] < 500),
        ("n = 1000 OR n = 100 OR n = 200", lambda row: False),
    ):
        found = through_tasks(table.uri, filter=text, **asked)
        assert in_order(found) == in_order([row for row in truth if matches(row)])
    assert in_order(through_tasks(table.uri, **way)) != in_order(truth)


def test_the_wal_is_that_of_the_load(table: Table) -> None:
    (_, two), truth = table.shards, in_order(list(table.truth().values()))
    source = loaded(table.uri, with_wal="TRUE")
    table.flush(two, Put([1, 31], 900))
    assert in_order(carried_out(source)) == truth
    assert in_order(through_tasks(table.uri, with_wal="true")) != truth


def test_rows_of_the_wal_that_are_too_many_to_send_are_refused(table: Table) -> None:
    with pytest.raises(Usage, match=r"rows of the WAL take .* keys_bytes_max = 10, "):
        loaded(table.uri, with_wal="true", keys_bytes_max="10")
    with pytest.raises(Usage, match="with_wal goes with latest"):
        loaded(table.uri, with_wal="true", consistency="snapshot")
    with pytest.raises(Usage, match="rows of the WAL are in no checkpoint"):
        loaded(table.uri, with_wal="true", checkpoint="monday")


def test_a_policy_folds_rows_of_the_wal_with_the_others(tmp_path: Path) -> None:
    table = make_policy_table(tmp_path / "t", Variant(expiry=False), rows=[1])
    table.flush((1, table.row(1, 5)))
    (shard,) = table.shards
    with table.dataset.mem_wal_writer(shard, max_wal_flush_interval_ms=20) as writer:
        writer.put(pa.Table.from_pylist([table.row(1, 7)], schema=table.dataset.schema))
        found = through_tasks(table.uri, columns="n", with_wal="true")
        wanted = open_table(table.uri).read(columns=["n"], with_wal=True).read_all().to_pylist()
        without = through_tasks(table.uri, columns="n")
    assert found == wanted != without


@pytest.mark.parametrize("asked", [{}, {"filter": "n < 1005"}, {"with_wal": "true"}], ids=str)
def test_the_nearest_come_first_with_their_distance(table: Table, asked: dict[str, str]) -> None:
    vector = [300.0, 150.0, -300.0, 0.5]
    nearest = Nearest(column="vector", vector=tuple(vector), k=4)
    options: dict[str, Any] = {"with_wal": True} if "with_wal" in asked else dict(asked)
    wanted = open_table(table.uri).read(nearest=nearest, columns=["n"], **options).read_all()
    text = {"nearest": f"vector={vector}", "k": "4", "metric": "l2", "columns": "n", **asked}
    found = through_tasks(table.uri, **text)
    assert found == wanted.to_pylist()
    assert list(found[0]) == ["n", "_distance"]
    source = loaded(table.uri, **text)
    assert source.schema().simpleString() == "struct<n:bigint,_distance:float>"
    assert len(planned(source)[1]) == 1
    assert len(through_tasks(table.uri, nearest=f"vector={vector}")) == 10


# ---- names


EXECUTOR = """
import pickle, sys
reader, partitions = pickle.load(open(sys.argv[1], "rb"))
rows = [r for p in partitions for batch in reader.read(p) for r in batch.to_pylist()]
print(*sorted(map(repr, rows)), sep="\\n")
"""


def configured(folder: Path, text: str) -> str:
    (folder / "memwal.toml").write_text(text)
    return str(folder / "memwal.toml")


def test_a_table_is_loaded_by_its_name(
    tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'[tables.mine]\nuri = "{table.uri}"\n[namespaces.lake]\nimpl = "dir"\n'
    file = configured(tmp_path, f'{text}root = "{tmp_path}"\n')
    Path(table.uri).rename(tmp_path / "t.lance")
    wanted = [row["n"] for row in through_tasks(f"{table.uri}.lance", columns="n")]
    for how in ("option", "variable"):
        options = {"config": file, "columns": "n"}
        if how == "variable":
            monkeypatch.setenv("MEMWAL_CONFIG", options.pop("config"))
        assert [row["n"] for row in through_tasks("lake:t", **options)] == wanted
        with pytest.raises(NotATable, match=r"^lake:tt: .* \(is t meant\?\)$"):
            loaded("lake:tt", **options)
        with pytest.raises(NotATable, match=r"mien: no such table: .*is mine meant"):
            loaded("mien", **options)
    with pytest.raises(Usage, match="no such configuration file"):
        loaded("mine", config=f"{file}.none")


def test_a_policy_that_only_the_configuration_has_is_refused(tmp_path: Path, table: Table) -> None:
    text = f'[tables.mine]\nuri = "{table.uri}"\n[tables.mine.policy.columns]\nn = "sum"\n'
    with pytest.raises(Refused, match="mine: the configuration has a row-merge policy"):
        loaded("mine", config=configured(tmp_path, text))


@pytest.mark.nightly
def test_tasks_renew_what_the_namespace_vends_and_show_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)
    with S3Server("tokens") as s3, NamespaceServer() as rest:
        uri = f"s3://{s3.make_bucket()}/orders"
        pending = builders.make_table(uri, rows=range(5), shards=1, options=s3.storage_options)
        pending.flush(pending.shards[0], Put([1, 7], 2))
        rest.tables["sales.orders"], rest.tables["sales.other"] = uri, "/nowhere"
        rest.storage_options, rest.seconds = s3.storage_options, 1.0
        text = f'[namespaces.lake]\nimpl = "rest"\nuri = "{rest.uri}"\n'
        file = configured(tmp_path, text + 'header.Authorization = "${LAKE_TOKEN}"\n')
        source = loaded("lake:sales.orders", config=file)
        reader, partitions = planned(source)
        monkeypatch.delenv("LAKE_TOKEN")  # of the driver, and of no executor
        before = len(rest.asked)
        time.sleep(1.2)
        # The table that was loaded, wherever its name may lead by now.
        rest.tables["sales.orders"] = "/nowhere"
        (tmp_path / "sent").write_bytes(pickle.dumps((reader, partitions)))
        done = subprocess.run(
            [sys.executable, "-c", EXECUTOR, str(tmp_path / "sent")],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stdout.splitlines() == in_order(list(pending.truth().values()))
        assert len(rest.asked) > before
        shown = f"{source.__dict__} {reader.__dict__} {partitions}"
        assert not any(secret in shown for secret in (TOKEN, OPTION, "aws_session_token"))
        assert TOKEN.encode() in pickle.dumps(reader)  # executors ask with it
        with pytest.raises(MemWalError) as refused:
            loaded("lake:sales.order", config=file)
        assert TOKEN not in str(refused.value)
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)
    with pytest.raises(StoreUnavailable):
        loaded("lake:sales.orders", config=file)
