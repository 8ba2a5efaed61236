"""Index catch-up on real tables: every kind, every method, and what a query then finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import DocumentGranularity
from lance.query import MatchQuery

from memwal.config import ResolvedTable, Settings
from memwal.jobs.index_catchup.job import (
    IndexCatchupOptions,
    run_index_catchup,
)
from memwal.jobs.index_catchup.plan import Method
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.report import JobReport
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.indexed import (
    ALL,
    BASE_ROWS,
    COLUMNS,
    by_name,
    check_answers,
    check_caught_up,
    erase_catchup,
    facts,
    generation,
    make_indexed,
    resolved,
    state,
    write_and_merge,
)
from tests.support.lsm_reads import lsm_read
from tests.support.progress import Quiet
from tests.support.sampling import grid, many
from tests.support.texts import KEY

pytestmark = pytest.mark.integration

DEFAULTS = Settings()
NO_PQ = tuple(n for n in ALL if n != "pq_idx")
SEGMENTED = ("key_idx", "cat_idx", "tags_idx", "text_idx", "ngram_idx", "n_idx")


def catch_up(
    table: Table,
    *names: str,
    method: Method | None = None,
    limits: Settings = DEFAULTS,
    **options: Any,
) -> JobReport:
    return run_index_catchup(
        IndexCatchupOptions(
            tables=[resolved(table).with_settings(limits)],
            engine=options.pop("engine", "local"),
            request=CatchupRequest(indexes=names, method=(method or "auto")),  # type: ignore[arg-type]
            **options,
        ),
        Quiet(),
    )


def done(report: JobReport) -> dict[str, Any]:
    assert report.exit_code == 0, report
    return by_name(report)


# ---- methods


@pytest.mark.parametrize("names", [NO_PQ, ("pq_idx",)], ids=["most kinds", "pq"])
def test_append_catches_up_every_kind(tmp_path: Path, names: tuple[str, ...]) -> None:
    table = make_indexed(tmp_path / "t", names, shards=2)
    write_and_merge(table, 1, 2)
    write_and_merge(table, 3, shard=1)
    before = lsm_read(table.uri).to_pylist()
    found = done(catch_up(table))
    assert {i.method for i in found.values()} == {"append"}
    assert {i.unindexed_rows_after for i in found.values()} == {0}
    assert all(i.unindexed_rows_before > 60 for i in found.values())
    a, b = table.shards
    assert all(i.caught_up == {a: 2, b: 1} for i in found.values())
    check_caught_up(table, names)
    assert sorted(before, key=str) == sorted(lsm_read(table.uri).to_pylist(), key=str)


def test_segments_catch_up_every_kind_that_takes_them(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", NO_PQ)
    write_and_merge(table, 1, 2, 3)
    limits = Settings(segment_rows_min=30)
    found = done(catch_up(table, method=Method.SEGMENTS, limits=limits))
    for name, index in found.items():
        assert index.method == ("segments" if name in SEGMENTED else "append"), name
    for name in SEGMENTED:
        index = facts(table).index(name)
        assert index is not None
        assert len(index.segments) >= 3, name
    check_caught_up(table, NO_PQ)


# A column each, so that Lance can't take one index for another's query.
TEXT_SETTINGS: dict[str, dict[str, Any]] = {
    "own_stop_words": {"custom_stop_words": ["apple"], "stem": False, "with_position": True},
    "no_stop_words": {"custom_stop_words": []},
    "long_words": {"max_token_length": None},
    "code": {"analyzer": "code", "index_operators": True, "split_on_numerics": False},
    "ngrams": {"base_tokenizer": "ngram", "min_ngram_length": 2, "prefix_only": True},
    "german": {"language": "German", "ascii_folding": False, "lower_case": False},
    "blocks": {"block_size": 256, "base_tokenizer": "whitespace"},
    "old_format": {"format_version": 1},
    "new_format": {"format_version": 3},
    "elements": {"document_granularity": DocumentGranularity.LIST_ELEMENT},
}
TEXTS = ["the Apple fooBar x1y2 a+b", "Äpfel laufen of the pie " + "q" * 50, None]
WORDS = (
    "apple",
    "the",
    "pie",
    "q" * 50,
    "foo",
    "foobar",
    "x1",
    "+",
    "pi",
    "Äpfel",
    "äpfel",
    "lauf",
)


def text_rows() -> pa.Table:
    columns = {
        name: [[t] for t in TEXTS] if name == "elements" else TEXTS for name in TEXT_SETTINGS
    }
    key = pa.field("k", pa.int64(), nullable=False, metadata=KEY)
    return pa.table(columns).append_column(key, [list(range(len(TEXTS)))])


def hits(dataset: Any, column: str) -> dict[str, list[int]]:
    """For each word the keys that the index finds."""
    found = {}
    for word in WORDS:
        query = MatchQuery(word, column)
        some = dataset.scanner(columns=["k"], full_text_query=query, fast_search=True).to_table()
        found[word] = sorted(some["k"].to_pylist())
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("covered", [True, False], ids=["covered", "empty"])
@pytest.mark.parametrize("method", [Method.APPEND, Method.SEGMENTS, Method.RETRAIN])
def test_a_full_text_index_keeps_its_settings(
    tmp_path: Path, method: Method, covered: bool
) -> None:
    dataset = lance.write_dataset(text_rows().slice(0, None if covered else 0), tmp_path / "t")
    whole = lance.write_dataset(text_rows(), "memory://")
    for table in (dataset, whole):
        for name, settings in TEXT_SETTINGS.items():
            table.create_scalar_index(name, "INVERTED", name=name, **settings)
    dataset.initialize_mem_wal()
    table = Table(uri=str(tmp_path / "t"), kind="int64")
    dataset = lance.write_dataset(text_rows(), dataset, mode="append")
    done(catch_up(table, method=method))
    dataset = table.dataset
    described = {d.name: d for d in dataset.describe_indices()}
    for wanted in whole.describe_indices():
        name, index = wanted.name, described[wanted.name]
        assert index.details == wanted.details, name
        versions = {s.index_version for s in index.segments}
        assert versions == {s.index_version for s in wanted.segments}, name
        params = [p["params"] for p in dataset.stats.index_stats(name)["indices"] if p]
        expected = whole.stats.index_stats(name)["indices"][0]["params"]
        assert params, name
        assert all(one == expected for one in params), name
        times = 2 if covered else 1
        wanted_hits = {word: sorted(times * found) for word, found in hits(whole, name).items()}
        assert hits(dataset, name) == wanted_hits, name


@pytest.mark.parametrize(
    "names",
    [NO_PQ, pytest.param(("pq_idx",), marks=pytest.mark.nightly)],
    ids=["most kinds", "pq"],
)
def test_retrain_leaves_one_segment_that_covers_everything(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    table = make_indexed(tmp_path / "t", names)
    write_and_merge(table, 1)
    done(catch_up(table))
    write_and_merge(table, 2)
    found = done(catch_up(table, method=Method.RETRAIN))
    assert {i.method for i in found.values()} == {"retrain"}
    for index in facts(table).indexes:
        assert len(index.segments) == 1, index.name
    check_caught_up(table, names)


@pytest.mark.nightly
def test_many_small_appends_keep_few_segments_and_answer_rightly(tmp_path: Path) -> None:
    names = ("key_idx", "text_idx", "flat_idx")
    table = make_indexed(tmp_path / "t", names)
    for number in range(1, 8):
        write_and_merge(table, number)
        assert {i.method for i in done(catch_up(table)).values()} == {"append"}
        check_caught_up(table, names)
    assert all(len(i.segments) <= 4 for i in facts(table).indexes)


def test_too_many_segments_are_rebuilt(tmp_path: Path) -> None:
    names = ("key_idx", "cat_idx", "flat_idx")
    table = make_indexed(tmp_path / "t", names)
    for number in (1, 2):
        write_and_merge(table, number)
        for name in names:
            table.dataset.optimize.optimize_indices(index_names=[name], num_indices_to_merge=0)
    found = done(catch_up(table, limits=Settings(retrain_segments_max=2)))
    assert {i.method for i in found.values()} == {"retrain"}
    assert {i.unindexed_rows_before for i in found.values()} == {0}
    assert all(len(i.segments) == 1 for i in facts(table).indexes)
    check_caught_up(table, names)
    again = catch_up(table, limits=Settings(retrain_segments_max=2))
    assert again.outcome == "nothing_to_do"


def test_partitions_that_grow_are_split(tmp_path: Path) -> None:
    uri, dice = str(tmp_path / "t"), Random(1)

    def make_vectors(rows: int, centre: float) -> pa.Table:
        numbers = pa.array([dice.gauss(centre, 1.0) for _ in range(2 * rows)], pa.float32())
        return pa.table({"v": pa.FixedSizeListArray.from_arrays(numbers, 2)})

    table = ResolvedTable(name="t", uri=uri, settings=Settings(), storage_options={})
    dataset = lance.write_dataset(make_vectors(40, centre=0.0), uri)
    dataset.create_index("v", "IVF_FLAT", num_partitions=2, target_partition_size=20)
    for _ in range(8):
        dataset = lance.write_dataset(make_vectors(20, centre=5.0), uri, mode="append")
        options = IndexCatchupOptions(tables=[table], engine="local", request=CatchupRequest())
        found = done(run_index_catchup(options, Quiet()))["v_idx"]
        assert (found.method, found.unindexed_rows_after) == ("append", 0)
    dataset = lance.dataset(uri)
    parts = dataset.stats.index_stats("v_idx")["indices"]
    columns = zip(*(i["partitions"] for i in parts), strict=True)
    sizes = [sum(p["size"] for p in rows) for rows in columns]
    assert max(sizes) <= 80 < sum(sizes) == 200
    near = {"column": "v", "q": [5.0, 5.0], "k": 200, "nprobes": len(sizes)}
    assert dataset.to_table(nearest=near).num_rows == 200


def test_a_vector_index_over_a_small_part_is_retrained(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["flat_idx"])
    table.flush(table.shards[0], Put(range(BASE_ROWS, 3 * BASE_ROWS), 20_000))
    table.merge_all()
    found = done(catch_up(table))["flat_idx"]
    assert found.method == "retrain"
    assert "67 %" in found.reason
    check_caught_up(table, ["flat_idx"])
    assert catch_up(table).outcome == "nothing_to_do"


# ---- what is recorded


def test_an_index_made_before_and_one_made_after_a_merge_both_get_an_entry(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx"])
    write_and_merge(table, 1)
    table.dataset.create_scalar_index("n", "BTREE", name="n_idx")
    assert "key_idx" not in state(table).index_catchup
    found = done(catch_up(table))
    assert (found["key_idx"].method, found["n_idx"].method) == ("append", "none")
    check_caught_up(table, ["key_idx", "n_idx"])


def test_a_generation_of_tombstones_takes_one_commit_that_records(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx", "cat_idx", "flat_idx"])
    table.flush(table.shards[0], Delete([1, 2, 3]))
    table.merge_all()
    version = int(table.dataset.version)
    found = done(catch_up(table))
    assert {(i.outcome, i.method) for i in found.values()} == {("done", "none")}
    assert int(table.dataset.version) == version + 1
    check_caught_up(table, ["key_idx", "cat_idx", "flat_idx"])


def test_a_table_without_rows_waits_for_the_next_ones(tmp_path: Path) -> None:
    """Its generations stay until then, as Lance records nothing of them."""
    names = ["key_idx", "cat_idx", "text_idx", "flat_idx"]
    table = make_indexed(tmp_path / "t", names)
    table.flush(table.shards[0], Delete(range(BASE_ROWS)))
    table.merge_all()
    assert table.base_rows() == {}
    found = catch_up(table)
    assert (found.outcome, found.tables[0].error) == ("nothing_to_do", None)
    write_and_merge(table, 1)
    done(catch_up(table))
    check_caught_up(table, names)


def test_erased_entries_are_recorded_again_with_one_commit(tmp_path: Path) -> None:
    names = ("key_idx", "cat_idx", "text_idx", "flat_idx")
    table = make_indexed(tmp_path / "t", names)
    write_and_merge(table, 1, 2)
    done(catch_up(table))
    erase_catchup(table)
    version = int(table.dataset.version)
    found = done(catch_up(table))
    assert {i.method for i in found.values()} == {"none"}
    assert int(table.dataset.version) == version + 1
    check_caught_up(table, names)


def test_a_merge_that_empties_a_segment_erases_entries_and_the_job_restores_them(
    tmp_path: Path,
) -> None:
    names = ("key_idx", "flat_idx")
    table = make_indexed(tmp_path / "t", names)
    shard = table.shards[0]
    table.flush(shard, Put(range(1000, 1010), 20_000))
    table.merge_all()
    for name in names:
        table.dataset.optimize.optimize_indices(index_names=[name], num_indices_to_merge=0)
    table.flush(shard, Put(range(1000, 1010), 30_000))
    table.merge_all()
    assert not state(table).index_catchup
    done(catch_up(table))
    check_caught_up(table, names)


def test_rows_that_were_appended_without_the_mem_wal_are_indexed_too(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx"])
    row = table.row(5000, 50_000, {column.name: None for column in COLUMNS})
    extra = lance.write_dataset(
        builders.pa.Table.from_pylist([row], schema=table.dataset.schema), table.uri, mode="append"
    )
    table.base[(5000,)] = row
    assert extra.count_rows() == BASE_ROWS + 1
    assert done(catch_up(table))["key_idx"].unindexed_rows_before == 1
    check_answers(table, ["key_idx"])
    assert catch_up(table).outcome == "nothing_to_do"


# ---- requests


def test_only_the_named_index_is_caught_up(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx", "cat_idx"])
    write_and_merge(table, 1)
    assert set(done(catch_up(table, "cat_idx"))) == {"cat_idx"}
    check_caught_up(table, ["cat_idx"])
    assert "key_idx" not in state(table).index_catchup
    unknown = catch_up(table, "nope")
    assert unknown.exit_code == 2
    assert "cat_idx, key_idx" in str(unknown.tables[0].error)


def test_a_dry_run_changes_nothing_and_tells_method_and_reason(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx", "flat_idx"])
    write_and_merge(table, 1)
    version = int(table.dataset.version)
    report = catch_up(table, dry_run=True)
    found = done(report)
    assert report.dry_run
    assert {i.method for i in found.values()} == {"append"}
    assert all("rows in 1 fragment" in str(i.reason) for i in found.values())
    assert found["key_idx"].caught_up == {table.shards[0]: 1}
    assert found["key_idx"].caught_up_before == {}
    assert int(table.dataset.version) == version
    assert not (Path(table.uri) / "_maintenance").exists()


def test_an_idle_pass_writes_nothing(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx"])
    write_and_merge(table, 1)
    done(catch_up(table))
    before = sorted(p for p in Path(table.uri).rglob("*"))
    assert catch_up(table).outcome == "nothing_to_do"
    assert sorted(p for p in Path(table.uri).rglob("*")) == before


def test_a_table_without_indexes_has_nothing_to_do(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", [])
    write_and_merge(table, 1)
    report = catch_up(table)
    assert (report.outcome, report.exit_code) == ("nothing_to_do", 0)


# ---- what Lance does badly


def test_a_codebook_is_not_retrained_on_too_few_rows(tmp_path: Path) -> None:
    # Lance would commit an index that covers nothing, without an error.
    table = make_indexed(tmp_path / "t", ["key_idx"], rows=300)
    table.dataset.create_index(
        "vector", "IVF_PQ", name="pq_idx", num_partitions=1, num_sub_vectors=2
    )
    table.flush(table.shards[0], Delete(range(60, 300)))
    table.merge_all()
    write_and_merge(table, 1)
    for method in (Method.RETRAIN, None):
        found = done(catch_up(table, method=method))
        assert found["pq_idx"].unindexed_rows_after == 0
    (first, *_) = [s for i in facts(table).indexes if i.name == "pq_idx" for s in i.segments]
    assert first.fragment_ids
    check_caught_up(table, ["key_idx", "pq_idx"])


def test_null_vectors_do_not_count_as_rows_to_train_on(tmp_path: Path) -> None:
    # 343 of 400 rows have a vector; after these, 60 of 400 have one.
    table = make_indexed(tmp_path / "t", ["pq_idx"])
    nulls = [key for key in range(BASE_ROWS) if key % 7]
    table.flush(table.shards[0], Put(nulls[:330], 7, {"vector": None}))
    table.merge_all()
    done(catch_up(table, method=Method.APPEND))
    report = catch_up(table, method=Method.RETRAIN)
    assert report.exit_code == 5
    assert "256 vectors" in str(by_name(report)["pq_idx"].error)
    assert facts(table).indexes[0].segments[0].fragment_ids


def but_run_records(table: Table) -> list[Path]:
    """Every file and folder; that a run was refused is recorded."""
    return sorted(p for p in Path(table.uri).rglob("*") if p.parent.name != "runs")


def test_an_index_that_was_never_trained_is_refused_until_there_are_rows(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx"], rows=100)
    table.dataset.create_index(
        "vector", "IVF_PQ", name="pq_idx", num_partitions=2, num_sub_vectors=2, train=False
    )
    write_and_merge(table, 1)
    report = catch_up(table)
    found = by_name(report)
    assert report.exit_code == 6
    assert (found["pq_idx"].outcome, found["key_idx"].outcome) == ("refused", "done")
    assert "256" in str(found["pq_idx"].error)
    before = but_run_records(table)
    again = catch_up(table)
    assert (again.outcome, again.exit_code) == ("refused", 7)
    assert but_run_records(table) == before
    table.flush(table.shards[0], Put(range(1000, 1400), 30_000))
    table.merge_all()
    assert done(catch_up(table))["pq_idx"].outcome == "done"
    check_caught_up(table, ["key_idx", "pq_idx"])


def test_an_index_on_a_nested_column_is_caught_up_by_segments(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", [])
    table.dataset.create_scalar_index("nested.a", "BTREE", name="nested_idx")
    write_and_merge(table, 1)
    found = done(catch_up(table))["nested_idx"]
    assert (found.method, found.unindexed_rows_after) == ("segments", 0)
    assert state(table).index_catchup["nested_idx"] == state(table).merged
    scanner = table.dataset.scanner(columns=["k"], filter="nested.a = 10003")
    assert "ScalarIndexQuery" in scanner.explain_plan(True)
    wanted = [k for k, r in table.truth().items() if (r["nested"] or {}).get("a") == 10003]
    assert [(k,) for k in scanner.to_table()["k"].to_pylist()] == wanted
    assert done(catch_up(table, method=Method.RETRAIN))["nested_idx"].outcome == "done"
    assert len(facts(table).indexes[0].segments) == 1


@pytest.mark.parametrize(
    ("method", "names"), grid([None, Method.SEGMENTS, Method.RETRAIN], [NO_PQ, ("pq_idx",)])
)
def test_rows_that_keep_their_ids_are_not_found_by_old_values(
    tmp_path: Path, names: tuple[str, ...], method: Method | None
) -> None:
    # With stable row ids, a delta beside the segment that knows a row's old value finds it by both.
    table = make_indexed(tmp_path / "t", names, enable_stable_row_ids=True)
    assert facts(table).stable_row_ids
    for number in range(1, many(3, 2) + 1):
        write_and_merge(table, number)
        done(catch_up(table, method=method))
        check_caught_up(table, names)
    assert all(len(i.segments) == 1 for i in facts(table).indexes)


# ---- races


def intrude(step: str, work: Callable[[], None]) -> Callable[[str], None]:
    """Steps that do something, once, just before the named one."""
    left = [work]

    def steps(now: str) -> None:
        if now == step and left:
            left.pop()()

    return steps


@pytest.mark.parametrize(
    ("method", "step"),
    [
        (Method.APPEND, "append"),
        pytest.param(Method.SEGMENTS, "build", marks=pytest.mark.nightly),
        (Method.SEGMENTS, "commit_segments"),
        pytest.param(Method.RETRAIN, "commit_segments", marks=pytest.mark.nightly),
        (Method.RETRAIN, "retrain"),
    ],
)
def test_a_merge_that_lands_between_plan_and_commit(
    tmp_path: Path, method: Method, step: str
) -> None:
    names = ("key_idx", "text_idx", "flat_idx")
    table = make_indexed(tmp_path / "t", names)
    write_and_merge(table, 1)
    table.flush(table.shards[0], generation(2))
    steps = intrude(step, lambda: table.merge_all() and None)
    found = done(catch_up(table, method=method, steps=steps))
    assert all(i.caught_up[table.shards[0]] >= 1 for i in found.values())
    assert state(table).merged == {table.shards[0]: 2}
    check_answers(table, names, covered=False)
    done(catch_up(table))
    check_caught_up(table, names)


def test_a_compaction_by_someone_else_makes_the_job_plan_again(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx", "cat_idx"])
    write_and_merge(table, 1, 2)
    steps = intrude(
        "commit_segments",
        lambda: table.dataset.optimize.compact_files(target_rows_per_fragment=100_000) and None,
    )
    found = done(catch_up(table, method=Method.SEGMENTS, steps=steps))
    assert sum(i.conflicts for i in found.values()) >= 1
    check_caught_up(table, ["key_idx", "cat_idx"])


def test_another_catch_up_at_the_same_time_does_no_harm(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx", "text_idx"])
    write_and_merge(table, 1)
    steps = intrude("append", lambda: catch_up(table, lease=False) and None)
    done(catch_up(table, steps=steps))
    check_caught_up(table, ["key_idx", "text_idx"])


# ---- lease, engine, stores, command line


def test_a_held_lease_ends_it_with_exit_code_4(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx"])
    write_and_merge(table, 1)
    leases = table.stores.leases
    claim = leases.acquire("compaction")
    version = int(table.dataset.version)
    report = catch_up(table)
    assert (report.outcome, report.exit_code) == ("held", 4)
    assert "compaction" in str(report.tables[0].error)
    assert int(table.dataset.version) == version
    assert catch_up(table, lease=False).exit_code == 0
    leases.release(claim)


def test_a_broken_lease_stops_the_run_before_its_next_commit(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx", "n_idx"])
    write_and_merge(table, 1)
    steps = intrude("committed_segments", lambda: table.stores.leases.break_("test") and None)
    report = catch_up(table, method=Method.SEGMENTS, steps=steps)
    assert report.exit_code == 4
    assert len([i for i in facts(table).indexes if not facts(table).uncovered(i)]) == 1
    done(catch_up(table))
    check_caught_up(table, ["key_idx", "n_idx"])


@pytest.mark.spark
def test_segments_are_built_on_spark(tmp_path: Path) -> None:
    table = make_indexed(tmp_path / "t", ["key_idx", "text_idx"])
    write_and_merge(table, 1, 2, 3)
    report = catch_up(
        table,
        method=Method.SEGMENTS,
        limits=Settings(segment_rows_min=30),
        engine="spark",
        master="local[2]",
    )
    assert report.engine is not None
    assert report.engine.name == "spark"
    assert {i.method for i in done(report).values()} == {"segments"}
    check_caught_up(table, ["key_idx", "text_idx"])


@pytest.mark.nightly
def test_on_s3(make_s3_uri: Callable[[], str], s3_server: Any) -> None:
    names = ("key_idx", "text_idx", "flat_idx")
    table = make_indexed(make_s3_uri(), names, options=s3_server.storage_options)
    write_and_merge(table, 1, 2)
    done(catch_up(table, method=Method.SEGMENTS))
    check_caught_up(table, names)
    write_and_merge(table, 3)
    done(catch_up(table))
    check_caught_up(table, names)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from memwal.cli import main

    table = make_indexed(tmp_path / "t", ["key_idx", "text_idx"])
    write_and_merge(table, 1)

    def memwal(*arguments: str) -> tuple[int, dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            main(["index-catchup", table.uri, "--json", *arguments])
        return int(str(ended.value.code)), json.loads(capsys.readouterr().out)

    code, document = memwal("--dry-run", "--index", "text_idx")
    assert code == 0
    assert [i["name"] for i in document["tables"][0]["indexes"]] == ["text_idx"]
    code, document = memwal("--engine", "local", "--method", "segments")
    assert code == 0
    for index in document["tables"][0]["indexes"]:
        assert index.items() >= {
            "outcome": "done", "method": "segments", "unindexed_rows_after": 0,
            "caught_up": {table.shards[0]: 1},
        }.items()  # fmt: skip
    assert memwal("--method", "nope")[0] == 2
    assert memwal()[1]["outcome"] == "nothing_to_do"
    check_caught_up(table, ["key_idx", "text_idx"])
