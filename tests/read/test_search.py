"""Full-text search over base and generations, against a plain model."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from memwal.cli import main
from memwal.errors import Corruption, Usage
from memwal.format import layout
from memwal.model import ShardId, ShardManifest
from memwal.read import Nearest, Search, open_table
from memwal.read.job import explain
from memwal.read.plan.request import ReadRequest
from memwal.read.plan.sources import ReadPlan
from memwal.read.spark import MemWalDataSource
from memwal.run.stores import Stores
from tests.support.sampling import many, seeds
from tests.support.texts import INDEX, KEY, SETTINGS, TextTable, make_texts, rows_of, zipf_texts

pytestmark = pytest.mark.integration

WORDS = ["apple", "Apples", "pie", "crust", "the", "tart", "universities", "university", "fox"]


def search(table: TextTable, query: str, **asked: Any) -> list[dict[str, Any]]:
    how = {name: asked.pop(name) for name in ("operator", "phrase") if name in asked}
    wanted = Search(column="text", query=query, **how)
    found: list[dict[str, Any]] = (
        open_table(table.uri).read(search=wanted, **asked).read_all().to_pylist()
    )
    return found


def keys(found: Sequence[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in found]


def indexed(table: TextTable, query: str) -> list[bool]:
    """Whether each generation's own index answers, as `--explain` has it; the newest is first."""
    request = ReadRequest(search=Search(column="text", query=query))
    (shard,) = explain(open_table(table.uri), request)["shards"]
    return [generation["lance_plan"] is not None for generation in shard["generations"]]


def text(rng: random.Random) -> str | None:
    return (
        rng.choice([None, ""])
        if rng.random() < 0.1
        else " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))
    )


# ---- what matches


@pytest.fixture(params=["own indexes", "row by row"])
def maintained(request: pytest.FixtureRequest) -> bool:
    """Whether generations have indexes of their own."""
    return bool(request.param == "own indexes")


@pytest.mark.parametrize("seed", seeds(2, 1))
def test_the_matches_are_the_model_s_whatever_is_merged_and_indexed(
    tmp_path: Path, maintained: bool, seed: int
) -> None:
    rng = random.Random(seed)
    table = make_texts(tmp_path / "t", {n: text(rng) for n in range(40)}, maintained=maintained)
    for _ in range(4):
        some = {rng.randrange(60): text(rng) for _ in range(8)}
        table.flush(some, deletes=rng.sample(range(60), 3))
    for step in ("pending", "partly merged", "merged", "caught up"):
        if step == "partly merged":
            table.merge(until=2)
        elif step == "merged":
            table.merge()
        elif step == "caught up":
            table.catch_up()
        for how in ({}, {"operator": "and"}, {"phrase": True}):
            for query in rng.sample(
                ("apple", "university pie", "the", "crust pie fox"), many(2, 1)
            ):
                wanted = table.find(Search(column="text", query=query, **how))
                found = search(table, query, **how)
                assert sorted(keys(found)) == sorted(wanted), (step, query, how)
                best = sorted(found, key=lambda row: (-row["_score"], row["id"]))
                assert found == best
                assert keys(search(table, query, limit=3, **how)) == keys(best[:3])
                filtered = search(table, query, filter="n < 300", columns=["n"], **how)
                assert sorted(row["n"] for row in filtered) == [
                    10 * key for key in sorted(wanted) if key < 30
                ]


def test_a_row_whose_newest_text_does_not_match_is_no_match(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {1: "lost parcel", 2: "lost key", 3: "parcel"})
    table.flush({1: "found parcel", 4: "lost and found"})
    table.flush({4: "found"}, deletes=[2])
    assert keys(search(table, "lost")) == []
    assert sorted(keys(search(table, "parcel"))) == [1, 3]
    # The filter is the newest row's affair too.
    assert keys(search(table, "parcel", filter="text LIKE 'lost%'")) == []
    assert keys(search(table, "parcel", key={"id": 3})) == [3]


def test_rows_that_are_in_the_wal_only(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {1: "one apple", 2: "a pie"})
    table.flush({2: "apples"})
    writer = table.writer()
    writer.put(rows_of({1: "none", 5: "Apple tart"}))
    assert sorted(keys(search(table, "apple"))) == [1, 2]
    assert sorted(keys(search(table, "apple", with_wal=True))) == [2, 5]
    writer.close()


@pytest.mark.nightly
def test_lance_logs_no_error_about_its_own_index_in_a_program(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {1: "one apple", 2: "a pie"})
    table.flush({2: "apples"})
    code = (
        f"import memwal; table = memwal.open_table({table.uri!r}); "
        "rows = table.read(search=memwal.Search(column='text', query='apple'), limit=2); "
        "print(rows.read_all().num_rows)"
    )
    free = {name: value for name, value in os.environ.items() if name != "LANCE_LOG"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=free, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_an_old_version_and_a_pruned_limit(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {1: "apple", 2: "pie"})
    table.flush({2: "apple pie"})
    before = int(table.dataset.version)
    table.merge()
    assert sorted(keys(search(table, "apple", version=before))) == [1, 2]
    assert search(table, "apple", limit=0) == []


# ---- which index


def test_own_indexes_are_used_and_what_none_covers_is_scanned(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {1: "apple", 2: "pie"})
    table.flush({3: "apple pie"})
    assert indexed(table, "apple") == [True]
    lance.write_dataset(rows_of({9: "apple"}), table.uri, mode="append")
    assert sorted(keys(search(table, "apples"))) == [1, 3, 9]


def test_a_generation_whose_own_index_lacks_rows_hides_no_match(tmp_path: Path) -> None:
    """As pylance 14.0.2 leaves private indexes when it flushes in the background."""
    table = make_texts(tmp_path / "t", {1: "apple"})
    table.flush({2: "pear"})
    table.flush({3: "apple", 4: "apple pie", 5: "pear"})
    one, three = (next(iter(folder.glob("_indices/*"))) for folder in table.generations())
    shutil.rmtree(three)
    shutil.copytree(one, three)
    assert sorted(keys(search(table, "apple"))) == [1, 3, 4]
    assert indexed(table, "apple") == [False, True]


def test_nothing_is_kept_of_a_generation_for_another_of_the_same_name(
    tmp_path: Path, maintained: bool
) -> None:
    base = dict.fromkeys((1, 2, 3), "apple")
    table, other = (make_texts(tmp_path / name, base, maintained=maintained) for name in "tu")
    table.flush({2: "pear"})
    other.flush({3: "pear"})
    for _ in range(2):
        assert (keys(search(table, "apple")), keys(search(table, "pear"))) == ([1, 3], [2])
    (old,), (new,) = table.generations(), other.generations()
    shutil.rmtree(old)
    shutil.copytree(new, old)
    for _ in range(2):
        assert (keys(search(table, "apple")), keys(search(table, "pear"))) == ([1, 2], [3])
    shutil.rmtree(old)
    with pytest.raises(Corruption, match="its rows are lost"):
        search(table, "apple")


def test_own_stop_words_of_the_base_s_index(tmp_path: Path) -> None:
    """pylance 14.0.2 flushes the generation's index with the language's stop words instead."""
    settings = {"custom_stop_words": ["apple"], "stem": False}
    table = make_texts(tmp_path / "t", {1: "the apple", 2: "pie"}, settings=settings)
    table.flush({3: "the apple", 4: "apple"})
    assert sorted(keys(search(table, "the"))) == [1, 3]
    assert keys(search(table, "apple")) == []
    assert indexed(table, "the") == [False]


@pytest.mark.parametrize(
    "settings",
    [
        {"stem": False, "remove_stop_words": False},
        {"language": "German"},
        {"base_tokenizer": "ngram", "min_ngram_length": 2, "max_ngram_length": 3},
        {"base_tokenizer": "whitespace", "lower_case": False},
        {"max_token_length": None},
    ],
    ids=str,
)
def test_words_are_the_index_s_words(
    tmp_path: Path, settings: dict[str, Any], maintained: bool
) -> None:
    base = {n: f"{word}, Äpfel" for n, word in enumerate(WORDS)}
    table = make_texts(tmp_path / "t", base, settings=settings, maintained=maintained)
    table.flush({20: "Universities of apples", 21: "Apfel", 1: "UNIVERSITY", 22: "Laufen"})
    for query in ("university", "apples", "Apfel", "APPLE pie", "laufen"):
        found = search(table, query)
        assert set(keys(found)) == table.find(Search(column="text", query=query)), query


def test_a_column_that_is_not_there_yet_has_no_words(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {1: "apple", 2: "pie"})
    table.flush({2: "apple pie"})
    table.dataset.add_columns(pa.field("title", pa.string()))
    table.dataset.create_scalar_index("title", "INVERTED")
    wanted = Search(column="title", query="apples")
    assert open_table(table.uri).read(search=wanted).read_all().num_rows == 0


# ---- ranks


def test_ranks_and_scores_stay_when_pending_rows_are_merged_and_indexed(
    tmp_path: Path, maintained: bool
) -> None:
    """New words weigh what they weigh in all tables, not in the generation that has them."""
    rng = np.random.default_rng(4)
    base = dict(enumerate(zipf_texts(rng, 600, 200, 30)))
    table = make_texts(tmp_path / "t", base, maintained=maintained)
    for start in (600, 650):
        fresh = [f"{one} quark" for one in zipf_texts(rng, 50, 200, 30)]
        table.flush(dict(enumerate(fresh, start)))
    queries = ("w5q", "quark w5q", "w1q w30q w190q", "quark", "w9q w9q w2q")
    before = [search(table, query, limit=10) for query in queries]
    table.merge()
    lagging = [search(table, query, limit=10) for query in queries]
    table.catch_up()
    after = [search(table, query, limit=10) for query in queries]
    plain = [
        table.dataset.to_table(full_text_query=query, limit=10, columns=["id", "_score"])
        for query in queries
    ]
    for one, two, three, four in zip(before, lagging, after, plain, strict=True):
        assert keys(one) == keys(two) == keys(three)
        scores = [[row["_score"] for row in found] for found in (one, two, three)]
        assert scores[0] == pytest.approx(scores[2], rel=1e-4)
        assert scores[1] == pytest.approx(scores[2], rel=1e-4)
        assert scores[2] == four["_score"].to_pylist()


def test_ties_are_broken_by_key_wherever_a_row_lies(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", dict.fromkeys(range(100, 0, -1), "same words"))
    table.flush(dict.fromkeys((7, 3, 120), "same words"))
    assert keys(search(table, "words", limit=8)) == list(range(1, 9))
    table.merge()
    table.catch_up()
    assert keys(search(table, "words", limit=8)) == list(range(1, 9))


def test_all_is_pending(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {})
    table.flush({1: "apple", 2: "apple pie with crust", 3: "tart"})
    table.flush({4: "apple apple tart"})
    assert keys(search(table, "apple tart")) == [4, 3, 1, 2]


# ---- refusals


def test_what_can_not_be_searched(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {1: "apple"}, settings={"with_position": False})
    reads = open_table(table.uri)
    for wrong, why in (
        (Search(column="n", query="1"), "'n' holds no text"),
        (Search(column="text", query="a b", phrase=True), "with_position=True"),
    ):
        with pytest.raises(Usage, match=why):
            reads.read(search=wrong)
    table.dataset.create_scalar_index("text", "INVERTED", name="two", replace=False, stem=False)
    with pytest.raises(Usage, match=r"\(text_idx, two\) cut texts in different ways"):
        reads.read(search=Search(column="text", query="apple"))
    for name in (INDEX, "two"):
        table.dataset.drop_index(name)
    with pytest.raises(Usage, match="no full-text index"):
        reads.read(search=Search(column="text", query="apple"))


def test_parts_of_words_are_no_phrases(tmp_path: Path) -> None:
    table = make_texts(
        tmp_path / "t", {1: "apple"}, settings={**SETTINGS, "base_tokenizer": "ngram"}
    )
    with pytest.raises(Usage, match="no phrases"):
        open_table(table.uri).read(search=Search(column="text", query="app", phrase=True))


# ---- shards that keys leave out


def test_keys_leave_shards_out_of_both_kinds_of_search(tmp_path: Path) -> None:
    """The shards' recorded values tell; a pruned shard may even be unreadable."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata=KEY),
            pa.field("text", pa.string()),
            pa.field("vector", pa.list_(pa.float32(), 2)),
        ]
    )

    def rows(*ids: int) -> pa.Table:
        return pa.table(
            {"id": ids, "text": ["an apple"] * len(ids), "vector": [[float(n), 0] for n in ids]},
            schema=schema,
        )

    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows(), uri)
    dataset.create_scalar_index("text", "INVERTED")
    dataset.initialize_mem_wal(identity_column="id", maintained_indexes=[INDEX])
    table = TextTable(uri=uri, settings={})
    for key in (1, 2):
        shard = ShardId(str(uuid.uuid4()))
        with table.writer(shard) as writer:
            writer.put(rows(key))
        record_shard_value(table.stores, shard, key.to_bytes(8, "little"))
    reads = open_table(uri)
    kinds = (
        {"search": Search(column="text", query="apples")},
        {"nearest": Nearest(column="vector", vector=(2.0, 0.0), k=5)},
    )
    for kind in kinds:
        assert sorted(reads.read(**kind).read_all()["id"].to_pylist()) == [1, 2]
        plan = reads.use_read(ReadRequest(keys=((2,),), **kind), lambda opened: opened.plan)
        assert (len(plan.shards), len(plan.pruned)) == (1, 1)
        assert reads.read(key={"id": 2}, **kind).read_all()["id"].to_pylist() == [2]
    shutil.rmtree(Path(uri, layout.generation_folder(*_pruned(plan))))
    for kind in kinds:
        assert reads.read(key={"id": 2}, **kind).read_all()["id"].to_pylist() == [2]


def _pruned(plan: ReadPlan) -> tuple[ShardId, str, int]:
    (shard,) = plan.pruned
    (generation,) = shard.generations
    return shard.shard_id, generation.path, generation.generation


def record_shard_value(stores: Stores, shard: ShardId, value: bytes) -> None:
    """Write into the shard's manifest which rows it holds, as another writer does."""
    current = stores.shard_manifests.latest(shard)
    assert isinstance(current, ShardManifest)
    (spec,) = stores.views.table().mem_wal.shard_specs
    entry = (spec.fields[0].field_id, value)
    proposed = replace(current, shard_field_entries=(entry,), shard_spec_id=spec.spec_id)
    stores.shard_manifests.commit(current, proposed)


# ---- the command, and Spark's tasks


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = make_texts(tmp_path / "t", {1: "lost parcel", 2: "a found parcel", 3: "key"})
    table.flush({3: "lost parcel parcel"})

    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["read", table.uri, *arguments])
        shown = capsys.readouterr()
        assert ended.value.code == code, shown.err
        return shown.out + shown.err

    asked = ("--search", "text=parcel lost", "--columns", "n", "--json")
    (found,) = json.loads(run(*asked))["tables"]
    assert [row["n"] for row in found["rows"]] == [10, 30, 20]
    assert [field["name"] for field in found["schema"]] == ["n", "_score"]
    (found,) = json.loads(run(*asked, "--operator", "and", "--limit", "1"))["tables"]
    assert [row["n"] for row in found["rows"]] == [10]
    (found,) = json.loads(run(*asked, "--phrase"))["tables"]
    assert found["num_rows"] == 0
    assert "MatchQuery" in run("--search", "text=parcel", "--explain")
    for wrong, why in (
        (("--search", "parcel"), "expected COLUMN=TEXT"),
        (("--search", "text= "), "no text to search for"),
        (("--search", "title=parcel"), "no column 'title'"),
        (("--search", "text=a", "--operator", "xor"), "'xor': expected 'or' or 'and'"),
        (("--search", "text=a", "--nearest", "n=[1]"), "not for both"),
        (("--phrase",), "go with --search"),
        (("--search", "text=a", "--columns", "_score"), "_score is added by itself"),
        (("--search", "text.words=a"), "what is inside of 'text' can't be named by itself"),
    ):
        assert why in run(*wrong, code=2)


def test_the_spark_source_searches_in_one_task(tmp_path: Path) -> None:
    table = make_texts(tmp_path / "t", {1: "lost parcel", 2: "a parcel", 3: "key"})
    table.flush({3: "lost parcel parcel"})
    options = {"path": table.uri, "search": "text=parcel", "columns": "n", "limit": "2"}
    source = pickle.loads(pickle.dumps(MemWalDataSource(CaseInsensitiveDict(options))))
    assert source.schema().names == ["n", "_score"]
    reader = source.reader(source.schema())
    (part,) = reader.partitions()
    batches = list(pickle.loads(pickle.dumps(reader)).read(part))
    rows = pa.Table.from_batches(batches).to_pylist()
    wanted = search(table, "parcel", limit=2, columns=["n"])
    assert [row["n"] for row in rows] == [row["n"] for row in wanted] == [20, 30]
    assert [row["_score"] for row in rows] == [row["_score"] for row in wanted]
    with pytest.raises(Usage, match="option limit goes with search and nearest"):
        MemWalDataSource(CaseInsensitiveDict({"path": table.uri, "limit": "2"})).schema()


def test_more_candidates_that_are_compared_exactly_find_more_of_the_nearest(tmp_path: Path) -> None:
    """An IVF_PQ index keeps vectors in short: its own ten best are not the ten nearest."""
    dice = np.random.default_rng(7)
    vectors = dice.normal(size=(4000, 16)).astype("float32")
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema(
        [
            pa.field("k", pa.int64(), nullable=False, metadata=key),
            pa.field("vector", pa.list_(pa.float32(), 16)),
        ]
    )
    stored = pa.FixedSizeListArray.from_arrays(vectors.ravel(), 16)
    rows = pa.table([range(4000), stored], schema=schema)
    dataset = lance.write_dataset(rows, str(tmp_path / "t"))
    dataset.create_index("vector", "IVF_PQ", num_partitions=4, num_sub_vectors=4)
    dataset.initialize_mem_wal(unsharded=True)
    asked = dice.normal(size=16).astype("float32")
    nearest = set(np.argsort(((vectors - asked) ** 2).sum(axis=1))[:10].tolist())
    table = open_table(str(tmp_path / "t"))

    def count(k: int) -> int:
        wanted = Nearest(column="vector", vector=tuple(asked.tolist()), nprobes=4, k=k)
        return len(nearest & {*table.read(nearest=wanted, limit=10).read_all()["k"].to_pylist()})

    assert count(10) < 10
    assert count(500) == 10
