"""`init` on real tables: what it makes, what stops it, who may come in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field
from typer.testing import CliRunner

import memwal
from memwal.cli.app import app
from memwal.config import ResolvedTable, Settings
from memwal.errors import MemWalError, NotATable, Refused, Unsupported, Usage
from memwal.format import codec, layout
from memwal.ingest import open_writer
from memwal.jobs.init.job import InitOptions, run_init
from memwal.jobs.init.plan import InitTableReport
from memwal.jobs.init.request import InitRequest, parse_expire, parse_spec
from memwal.jobs.runs import run_runs
from memwal.ports import Steps, no_steps
from memwal.run.reports import take_report
from tests.support import builders
from tests.support.builders import Put
from tests.support.progress import Quiet
from tests.support.stopping import Stop, Stopper

_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("k2", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("score", pa.float64(), nullable=False),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
_ROWS = [
    {"id": i, "k2": f"k{i}", "n": i, "score": i / 2, "tags": ["a"]} for i in range(3)
]  # fmt: skip


@pytest.fixture
def uri(tmp_path: Path) -> str:
    path = tmp_path / "t"
    made = lance.write_dataset(pa.Table.from_pylist(_ROWS, schema=_SCHEMA), path)
    made.create_scalar_index("id", "BTREE", name="id_idx")
    made.create_scalar_index("k2", "BITMAP", name="k2_idx")
    return str(path)


def init(
    uri: str,
    key: Sequence[str] = ("id",),
    *,
    spec: str | None = None,
    maintained: Sequence[str] | None = None,
    policy: str | None = None,
    steps: Steps = no_steps,
    options: dict[str, str] | None = None,
    keys_stay: bool = False,
    check_keys: bool = False,
    expire: str | None = None,
    **more: Any,
) -> InitTableReport:
    request = InitRequest(
        primary_key=tuple(key),
        spec=None if spec is None else parse_spec(spec),
        maintain=maintained or (),
        maintain_none=maintained == (),
        policy=() if policy is None else (policy,),
        keys_stay=keys_stay,
        check_keys=check_keys,
        expire=None if expire is None else parse_expire(expire),
    )
    table = ResolvedTable(
        name="t", uri=uri, settings=Settings(), storage_options={} if options is None else options
    )
    run = run_init(InitOptions(tables=[table], request=request, **more), Quiet(), steps)
    return take_report(run, InitTableReport)


def details(uri: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = lance.dataset(uri).mem_wal_index_details()
    return found


# ---- what it makes


@pytest.mark.parametrize(
    ("spec", "transform"),
    [
        (None, "unsharded"),
        ("manual", None),
        ("bucket(id, 4)", "bucket"),
        (" identity( k2 )", "identity"),
    ],
)
def test_a_table_is_ready_for_writers(uri: str, spec: str | None, transform: str | None) -> None:
    report = init(uri, ("id", "k2"), spec=spec)
    assert (report.outcome, report.steps) == ("done", ("primary_key", "mem_wal"))
    assert (report.version_before, report.version_after) == (3, 5)
    assert report.spec == (spec or "unsharded").replace("( k2 )", "(k2)").strip()
    specs = (details(uri) or {})["sharding_specs"]
    assert [s["fields"][0]["transform"] for s in specs] == (
        [] if transform is None else [transform]
    )
    table = memwal.open_table(uri)
    with open_writer(uri) as writer:
        writer.write(table.read(limit=1).read_all())
    (shard,) = table.status().shards
    assert len(shard.pending_generations) == 1
    assert report.shard_id == (shard.shard_id if spec is None else None)
    table.merge()
    assert table.read().read_all().sort_by("id").to_pylist() == _ROWS
    again = init(uri, (), spec=spec)
    assert (again.outcome, again.steps, again.shard_id) == ("nothing_to_do", (), report.shard_id)


def test_a_composite_key_keeps_its_order(uri: str) -> None:
    assert init(uri, ("k2", "id")).primary_key == ("k2", "id")
    assert memwal.open_table(uri).status().primary_key == ("k2", "id")


@pytest.mark.parametrize(
    ("maintained", "wanted"), [(None, None), ((), ()), (("id_idx",), ("id_idx",))]
)
def test_maintained_indexes(
    uri: str, maintained: tuple[str, ...] | None, wanted: tuple[str, ...] | None
) -> None:
    assert init(uri, maintained=maintained).maintained_indexes == wanted
    found = details(uri) or {}
    assert found["maintain_all_indexes"] is (wanted is None)
    assert tuple(found["maintained_indexes"]) == (wanted or ())


def test_the_policy_is_stored_before_the_mem_wal(uri: str) -> None:
    seen: list[tuple[str, bool, bool]] = []

    def look(step: str) -> None:
        config = lance.dataset(uri).config()
        seen.append((step, "memwal.policy" in config, details(uri) is not None))

    report = init(uri, policy='columns.n = "sum"', steps=look)
    assert seen == [
        ("primary_key", False, False), ("policy", False, False), ("mem_wal", True, False)
    ]  # fmt: skip
    assert report.policy is not None
    assert report.policy["columns"] == {"n": "sum"}


def test_a_dry_run_changes_nothing(uri: str) -> None:
    before = sorted(Path(uri).rglob("*"))
    report = init(uri, policy='columns.n = "sum"', spec="bucket(id, 2)", dry_run=True)
    assert report.steps == ("primary_key", "policy", "mem_wal")
    assert (report.spec, report.shard_id) == ("bucket(id, 2)", None)
    assert sorted(Path(uri).rglob("*")) == before


def test_a_run_is_recorded(uri: str) -> None:
    init(uri)
    init(uri)
    table = ResolvedTable(name="t", uri=uri, settings=Settings(), storage_options={})
    (found,) = run_runs([table], 10).tables
    assert [run.job for run in getattr(found, "runs", ())] == ["init"]


# ---- what stops it


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"key": ()}, Usage, "no primary key.*--primary-key.*: id, k2, n\\)"),
        ({"key": ("nope",)}, Usage, "no column 'nope', but id, k2"),
        ({"key": ("id", "id")}, Usage, "twice"),
        ({"key": ("n",)}, Refused, "'n' may be NULL.*alter_columns"),
        ({"key": ("score",)}, Unsupported, "'score' is of type double"),
        ({"key": ("tags",)}, Unsupported, "'tags' is of type list"),
        ({"spec": "bucket(nope, 4)"}, Usage, "no column 'nope'"),
        ({"spec": "identity(n)"}, Refused, r"'n', which is not in the primary key \(id\)"),
        ({"spec": "bucket(tags, 4)", "keys_stay": True}, Unsupported, "list<item: string>"),
        ({"maintained": ("nope",)}, Usage, "no index 'nope', but id_idx, k2_idx"),
        ({"maintained": ("k2_idx",)}, Unsupported, "'k2_idx' \\(Bitmap\\) can't be maintained"),
        ({"policy": 'columns.nope = "sum"'}, Refused, "'nope', which is no column"),
        ({"policy": 'columns.id = "sum"'}, Refused, "a column of the key"),
        ({"key": ("n",), "maintained": ("nope",)}, Refused, "may be NULL.*; it has no index"),
    ],
)
def test_what_stops_it(
    uri: str, asked: dict[str, Any], error: type[MemWalError], says: str
) -> None:
    for dry_run in (True, False):
        with pytest.raises(error, match=says):
            init(uri, **{"key": ("id",), **asked}, dry_run=dry_run)
    assert lance.dataset(uri).version == 3


@pytest.mark.parametrize("indexed", [True, False])
def test_keys_that_the_table_holds_twice(uri: str, indexed: bool) -> None:
    lance.write_dataset(lance.dataset(uri).to_table(limit=1), uri, mode="append")
    if not indexed:
        lance.dataset(uri).drop_index("id_idx")
        assert init(uri, dry_run=True).outcome == "done"
    with pytest.raises(Refused, match=r"1 key more than once in the table: id=.* \(MW-T13\)"):
        init(uri, check_keys=not indexed)


def test_a_spec_outside_the_key_is_made_for_keys_that_stay(uri: str) -> None:
    report = init(uri, spec="identity(k2)", keys_stay=True)
    assert (report.outcome, report.spec) == ("done", "identity(k2)")


def test_a_nullable_key_is_ready_after_the_line_that_is_told(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1]}), uri)
    with pytest.raises(Refused) as caught:
        init(uri)
    line = str(caught.value).split("`")[1]
    exec(line, {"lance": lance})
    assert init(uri).outcome == "done"


@pytest.mark.parametrize(
    ("field", "values", "says"),
    [
        (pa.field("_tombstone", pa.bool_()), pa.array([True]), "_tombstone"),
        (pa.field("a`b", pa.int64()), pa.array([1]), "can't select"),
        (pa.field("b", pa.json_()), pa.array(["{}"], pa.json_()), "takes no JSON"),
        (
            pa.field("b", pa.struct([blob_field("x")])),
            pa.StructArray.from_arrays([blob_array([b"1"])], fields=[blob_field("x")]),
            "blobs inside",
        ),
    ],
)
def test_columns_that_stop_it(tmp_path: Path, field: pa.Field, values: pa.Array, says: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), field])
    rows = pa.table([pa.array([1], pa.int64()), values], schema=schema)
    lance.write_dataset(rows, tmp_path / "t", data_storage_version="2.2")
    with pytest.raises(Unsupported, match=says):
        init(str(tmp_path / "t"))


def test_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(NotATable, match="no such table"):
        init(str(tmp_path / "t"))


def test_a_spec_that_is_none() -> None:
    for text in ("", "bucket(id)", "bucket(id, 0)", "bucket(id, 1025)", "identity()", "hash(id)"):
        with pytest.raises(Usage, match="--spec"):
            parse_spec(text)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"spec": "bucket(id, 8)"}, r"spec is bucket\(id, 4\), not bucket\(id, 8\)"),
        ({"maintained": ()}, "maintained is id_idx, not none"),
        ({"policy": 'columns.n = "sum"'}, "no row-merge policy"),
    ],
)
def test_another_mem_wal_than_asked_for(uri: str, asked: dict[str, Any], says: str) -> None:
    same: dict[str, Any] = {"spec": "bucket(id, 4)", "maintained": ("id_idx",)}
    init(uri, **same)
    assert init(uri, **same).outcome == "nothing_to_do"
    with pytest.raises(Refused, match=f"has a MemWAL already.*{says}"):
        init(uri, **{"key": ("id",), **asked})


def test_another_key_is_refused_at_once(uri: str) -> None:
    """As it would be after the quiesce that another spec needs."""
    init(uri)
    with pytest.raises(Refused, match=r"primary key is id, and Lance changes no key \(MW-T02\)"):
        init(uri, ("k2",))


def test_a_mem_wal_without_a_key_is_told_of(uri: str) -> None:
    lance.dataset(uri).initialize_mem_wal()
    assert "can't be merged" in init(uri, ()).warnings[0]
    with pytest.raises(Refused, match="primary key is none, not id"):
        init(uri)


@pytest.mark.parametrize("left", ["generation", "wal"])
def test_rows_of_a_former_mem_wal_are_not_brought_back(tmp_path: Path, left: str) -> None:
    table = builders.make_table(tmp_path / "t", rows=[1], shards=1)
    if left == "generation":
        table.flush(table.shards[0], Put([1], 1))
    else:
        writer = table.dataset.mem_wal_writer(table.shards[0])
        writer.put(table.dataset.head(1))
        shutil.copytree(table.uri, f"{table.uri}-copy")  # its writer never flushes
        writer.close()
        table.uri = f"{table.uri}-copy"
    lance.dataset(table.uri).drop_index("__lance_mem_wal")
    with pytest.raises(Refused, match=f"former MemWAL.*{table.shards[0]}"):
        init(table.uri, ())
    assert details(table.uri) is None


def test_what_was_collected_is_not_taken_for_rows_in_the_wal(tmp_path: Path) -> None:
    """pylance 14.0.2 may understate the replay position: here it is put back by hand."""
    table = builders.make_table(tmp_path / "t", rows=[1], shards=1)
    (shard,) = table.shards
    table.flush(shard, Put([1, 2], 1), Put([3, 4, 5], 1))
    current = table.stores.shard_manifests.latest(shard)
    assert current is not None
    behind = replace(current, version=current.version + 1, replay_after_wal_entry_position=1)
    path = layout.shard_manifest_path(shard, behind.version)
    table.stores.objects.put(path, codec.encode_shard_manifest(behind))
    words = ["--yes", "--idle", "0s", "--retention", "0s", "--grace", "0s"]
    done = CliRunner().invoke(app, ["quiesce", table.uri, *words, "--allow-short-retention"])
    assert done.exit_code == 0, done.output
    lance.dataset(table.uri).drop_index("__lance_mem_wal")
    init(table.uri, ())
    assert details(table.uri) is not None
    table.flush(shard, Put([6], 2))  # a new writer passes over it, too
    assert table.dataset.count_rows() == 5
    assert memwal.open_table(table.uri).read().read_all().num_rows == 6


# ---- killed, and beside others


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_killed_run_is_finished_by_the_next(uri: str, nth: int) -> None:
    asked: dict[str, Any] = {"policy": 'columns.n = "sum"', "spec": "bucket(id, 2)"}
    with pytest.raises(Stop):
        init(uri, **asked, steps=Stopper(nth))
    steps = ("primary_key", "policy", "mem_wal")
    assert init(uri, **asked).steps == steps[nth - 1 :]
    assert init(uri, **asked).outcome == "nothing_to_do"


def at(step: str, act: Callable[[], object]) -> Steps:
    left = [act]
    return lambda now: left.pop()() if now == step and left else None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("step", ["primary_key", "mem_wal"])
def test_somebody_else_makes_the_same(uri: str, step: str) -> None:
    report = init(uri, steps=at(step, lambda: init(uri, lease=False)))
    assert report.spec == "unsharded"
    assert step not in report.steps


def test_somebody_else_makes_another(uri: str) -> None:
    other = at("mem_wal", lambda: init(uri, spec="bucket(id, 2)", lease=False))
    with pytest.raises(Refused, match=r"spec is bucket\(id, 2\), not unsharded"):
        init(uri, spec="unsharded", steps=other)


def test_somebody_else_takes_another_key(uri: str) -> None:
    other = at("primary_key", lambda: init(uri, ("k2",), lease=False))
    with pytest.raises(Refused, match="primary key is k2"):
        init(uri, steps=other)


@pytest.mark.parametrize("step", ["primary_key", "mem_wal"])
def test_rows_that_come_meanwhile_stay(uri: str, step: str) -> None:
    more = pa.Table.from_pylist([{**_ROWS[0], "id": 9}], schema=_SCHEMA)
    init(uri, steps=at(step, lambda: lance.write_dataset(more, uri, mode="append")))
    assert lance.dataset(uri).count_rows() == 4
    assert details(uri) is not None


def test_a_column_that_goes_meanwhile_stops_it(uri: str) -> None:
    drop = at("primary_key", lambda: lance.dataset(uri).drop_columns(["k2"]))
    with pytest.raises(Usage, match="no column 'k2'"):
        init(uri, ("k2",), steps=drop)


def test_an_overwrite_meanwhile_is_looked_at_anew(uri: str) -> None:
    other = pa.table({"x": [1]})
    write = at("mem_wal", lambda: lance.write_dataset(other, uri, mode="overwrite"))
    with pytest.raises(Usage, match="no column 'id'"):
        init(uri, steps=write)
    assert details(uri) is None


def test_a_policy_needs_the_lease(uri: str) -> None:
    with pytest.raises(Refused, match="lease"):
        init(uri, policy='columns.n = "sum"', lease=False)
    assert details(uri) is None


# ---- rows that expire

_SUM = 'columns.n = "sum"'


@pytest.fixture
def dated(uri: str) -> str:
    lance.dataset(uri).add_columns({"at": "timestamp '2026-01-01 00:00:00'"})
    return uri


def stored_expire(uri: str) -> str | None:
    found: str | None = lance.dataset(uri).config().get("memwal.expire")
    return found


def test_when_rows_expire_is_stored_before_the_mem_wal(dated: str) -> None:
    foreseen = init(dated, expire="at=90d", dry_run=True)
    assert stored_expire(dated) is None
    made = init(dated, expire="at=90d")
    for found in (foreseen, made):
        assert found.steps == ("primary_key", "expire", "mem_wal")
        assert found.expire == {"column": "at", "after_seconds": 90 * 86_400}
    assert stored_expire(dated) == '{"after_seconds": 7776000, "column": "at", "format": 1}'
    again = init(dated, expire="at=90d")
    assert (again.outcome, again.steps) == ("nothing_to_do", ())
    assert init(dated).expire == made.expire


def test_when_rows_expire_can_be_said_later_and_changed(dated: str) -> None:
    init(dated)
    assert init(dated).expire is None
    assert init(dated, expire="at=90d").steps == ("expire",)
    assert init(dated, expire="at=30d").steps == ("expire",)
    assert stored_expire(dated) == '{"after_seconds": 2592000, "column": "at", "format": 1}'


def test_the_configuration_says_when_rows_expire(dated: str, tmp_path: Path) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text(f'[tables.e]\nuri = "{dated}"\nexpire = {{ column = "at", after = "7d" }}\n')
    done = CliRunner().invoke(
        app, ["init", "e", "--primary-key", "id", "--config", str(file)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "604800" in done.output
    assert "604800" in str(stored_expire(dated))


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(
    ("expire", "code"), [("gone=90d", "MW-P16"), ("n=90d", "MW-P16"), ("tags=90d", "MW-P16")]
)
def test_rows_can_t_expire_by_what_is_no_time(
    dated: str, expire: str, code: str, *, ready: bool
) -> None:
    if ready:
        init(dated)
    with pytest.raises(Refused, match=code):
        init(dated, expire=expire)
    assert stored_expire(dated) is None


@pytest.mark.parametrize("text", ["at", "=90d", "at=", "at=90", "at=soon", "at=500ms", "at=0d"])
def test_an_expiry_that_is_none_is_usage(text: str) -> None:
    with pytest.raises(Usage):
        parse_expire(text)


def test_a_policy_and_an_expiry_exclude_each_other(dated: str) -> None:
    with pytest.raises(Refused, match="MW-P17"):
        init(dated, expire="at=90d", policy=_SUM)
    lance.dataset(dated).update_config({"memwal.expire": parse_expire("at=90d").as_text()})
    with pytest.raises(Refused, match="MW-P17"):
        init(dated, policy=_SUM)
    assert "memwal.policy" not in lance.dataset(dated).config()


def test_a_table_with_a_policy_takes_no_expiry(dated: str) -> None:
    init(dated, policy=_SUM)
    with pytest.raises(Refused, match="MW-P17"):
        init(dated, expire="at=90d")
    assert stored_expire(dated) is None
