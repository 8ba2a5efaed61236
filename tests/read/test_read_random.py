"""The merging read against a plain model, row by row, on random tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from memwal.jobs.merge.request import MergeRequest
from memwal.read import Nearest, ReadableTable, open_table
from memwal.read.store import newest_rows
from tests.support import builders
from tests.support.builders import KINDS, Delete, Put, Row, Table
from tests.support.sampling import FULL, grid, seeds

pytestmark = pytest.mark.integration

ROUNDS = 4
KEYS_MAX = 24
Test = Callable[[Row], bool]

# Most rows change `n` when they are written again, so that a filter on it that was asked of older
# rows too would bring them back.
FILTERS: Sequence[tuple[str | None, Test]] = (
    (None, lambda row: True),
    ("n < 1000", lambda row: row["n"] < 1000),
    ("n >= 1000", lambda row: row["n"] >= 1000),
    ("text IS NULL", lambda row: row["text"] is None),
    ("nested.a > 30", lambda row: row["nested"] is not None and row["nested"]["a"] > 30),
    ("n % 3 = 1 OR text LIKE '%7'", lambda row: row["n"] % 3 == 1 or _ends(row["text"], "7")),
)


def _ends(text: str | None, end: str) -> bool:
    return text is not None and text.endswith(end)


def write_randomly(table: Table, rng: random.Random, numbers: Iterable[int], keys: int) -> None:
    """One generation for each shard: puts, deletes, and keys that come back."""
    count = len(table.shards)
    for place, shard in enumerate(table.shards):
        mine = range(place, keys, count)
        if not mine:
            continue
        ops: list[Put | Delete] = []
        for _ in range(rng.randint(1, 3)):
            some = rng.sample(mine, rng.randint(1, min(5, len(mine))))
            ops.append(Delete(some) if rng.random() < 0.3 else Put(some, next(iter(numbers))))
        table.flush(shard, *ops)


def random_table(folder: Path, kind: str, rng: random.Random, doubles: int = 0) -> Table:
    """Several shards with several generations each; some of them merged, a version a merge."""
    keys = min(KINDS[kind].keys_max, KEYS_MAX)
    table = builders.make_table(
        folder / "t", kind, rows=range(keys // 2), doubles=range(min(doubles, keys // 2)),
        shards=rng.randint(1, 3), indexed=rng.random() < 0.5,
    )  # fmt: skip
    numbers = builders.numbers()
    small = iter(range(0, 1000, 10))
    for turn in range(ROUNDS):
        write_randomly(table, rng, small if turn % 2 else numbers, keys)
        if turn in (1, 2):
            until = rng.randint(turn, turn + 1)
            for shard in table.shards:
                table.merger().run(shard, MergeRequest(until_generation=until))
    return table


Made = Callable[..., tuple[Table, random.Random]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A random table by seed and kind of key, made once since it is only read; and its chance."""

    @cache
    def make(seed: int | str, kind: str | None) -> tuple[Table, Any]:
        rng = random.Random(seed)
        doubles = 0 if kind else 4  # a search by key or limit counts rows by their keys
        kind = kind or rng.choice(list(KINDS))
        return random_table(tmp_path_factory.mktemp("random"), kind, rng, doubles), rng.getstate()

    def get(seed: int | str, kind: str | None = None) -> tuple[Table, random.Random]:
        table, state = make(seed, kind)
        rng = random.Random()
        rng.setstate(state)
        return table, rng

    return get


def in_order(rows: Iterable[Row]) -> list[str]:
    return sorted(map(repr, rows))


def check_read(table: Table, reads: ReadableTable, version: int, first: list[str]) -> None:
    """Every filter, all columns and without the key, at one version."""
    truth = table.shown()
    for text, matches in FILTERS:
        wanted = [row for row in truth if matches(row)]
        found = reads.read(filter=text, version=version).read_all().to_pylist()
        assert in_order(found) == in_order(wanted), f"{text} at version {version}"
        some = reads.read(filter=text, columns=first, version=version).read_all()
        assert some.column_names == first
        cut = [{name: row[name] for name in first} for row in wanted]
        assert in_order(some.to_pylist()) == in_order(cut), f"{text} without the key"


WAYS = ("held", "candidates first", "keys first")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ways through a read: with few candidates allowed, all keys are folded."""
    if request.param != "held":
        monkeypatch.setattr(newest_rows, "_HELD_BYTES_MAX", 0)
    if "keys" in request.param:
        monkeypatch.setattr(newest_rows, "_CANDIDATES_MAX", 1)
        monkeypatch.setattr(newest_rows, "_CANDIDATES_MIN", 1)
    return str(request.param)


@pytest.mark.parametrize("seed", seeds(4, 1), ids=lambda seed: f"seed={seed}")
def test_every_read_gives_the_model_at_every_version(made: Made, seed: int, way: str) -> None:
    table, _ = made(seed)
    reads = open_table(table.uri)
    versions = [v for v in table.versions() if table.stores.table_manifests.read(v).mem_wal]
    assert len(versions) >= 2
    for version in versions if FULL else (versions[0], versions[-1]):
        check_read(table, reads, version, ["nested", "n"])


@pytest.mark.parametrize(("kind", "way"), grid(KINDS, WAYS), indirect=["way"])
def test_every_kind_of_key(made: Made, kind: str, way: str) -> None:
    table, rng = made(kind, kind)
    reads, truth = open_table(table.uri), table.truth()
    found = table.keyed(reads.read().read_all())
    builders.same_rows(found, truth, "all rows")
    names = table.kind.names
    keys = [table.kind.key(n) for n in range(min(table.kind.keys_max, KEYS_MAX))]
    for key in rng.sample(keys, min(len(keys), 6)):
        one = reads.read(key=dict(zip(names, key, strict=True))).read_all().to_pylist()
        assert one == ([truth[key]] if key in truth else []), key
    several = reads.read(
        key=[dict(zip(names, key, strict=True)) for key in keys], columns=["n"], filter="n < 1000"
    )
    wanted = [row["n"] for row in truth.values() if row["n"] < 1000]
    assert sorted(several.read_all()["n"].to_pylist()) == sorted(wanted)


@pytest.mark.parametrize("limit", [0, 1, 3, 1000])
@pytest.mark.parametrize("text", [None, "n < 1000"])
def test_a_limit_gives_so_many_true_rows(
    made: Made, limit: int, text: str | None, way: str
) -> None:
    table, _ = made(7, "int64")
    wanted = [row for row in table.truth().values() if text is None or row["n"] < 1000]
    found = open_table(table.uri).read(filter=text, limit=limit).read_all().to_pylist()
    assert len(found) == min(limit, len(wanted))
    assert len({row["k"] for row in found}) == len(found)
    assert all(row in wanted for row in found)


# ---- search


def distance(metric: str, left: Sequence[float], right: Sequence[float]) -> float:
    if metric == "l2":
        return float(sum((a - b) ** 2 for a, b in zip(left, right, strict=True)))
    dot = sum(a * b for a, b in zip(left, right, strict=True))
    if metric == "dot":
        return 1 - dot
    norms = sum(a * a for a in left) ** 0.5 * sum(b * b for b in right) ** 0.5
    return 1 - dot / norms


def check_search(
    table: Table, reads: ReadableTable, rng: random.Random, metric: str | None = None
) -> None:
    """The distances are those of a search by hand, and each is that of its row."""
    truth = table.truth()
    for text, matches in FILTERS[:3]:
        vector = [float(rng.randint(-1000, 1000)) for _ in range(4)]
        k = rng.choice([1, 4, 100])
        by_hand = sorted(
            distance(metric or "l2", vector, row["vector"])
            for row in table.shown()
            if row["vector"] is not None and matches(row)
        )[:k]
        nearest = Nearest(column="vector", vector=vector, k=k, metric=metric)
        found = reads.read(filter=text, nearest=nearest).read_all()
        assert found.column_names[-1] == "_distance"
        assert found["_distance"].to_pylist() == pytest.approx(by_hand, rel=1e-4, abs=1e-4)
        for row in found.to_pylist():
            assert row.pop("_distance") == pytest.approx(
                distance(metric or "l2", vector, row["vector"]), rel=1e-4, abs=1e-4
            )
            assert row == truth[tuple(row[name] for name in table.kind.names)]


@pytest.mark.parametrize("metric", [None, "cosine", "dot"])
@pytest.mark.parametrize("seed", seeds(4, 1), ids=lambda seed: f"seed={seed}")
def test_a_search_gives_what_brute_force_gives(made: Made, seed: int, metric: str | None) -> None:
    table, rng = made(seed)
    check_search(table, open_table(table.uri), rng, metric)


@pytest.mark.parametrize("pending", [1, 3])
def test_a_search_through_indexes_leaves_no_row_out(tmp_path: Path, pending: int) -> None:
    """A base with an index, merged rows that it does not cover, and generations with their own."""
    table = builders.make_table(tmp_path / "t", rows=range(300), columns=())
    table.dataset.create_index("vector", "IVF_FLAT", num_partitions=1, name="vector_idx")
    (shard,) = table.shards
    table.flush(shard, Put(range(100), 5000))
    table.merge_all()
    for turn in range(pending):
        table.flush(shard, Put(range(50 + turn, 150), 7000 + 500 * turn), Delete([3 + turn]))
    check_search(table, open_table(table.uri), random.Random(pending))


def test_superseded_neighbours_make_room_for_others(tmp_path: Path) -> None:
    """The base's nearest rows were all written again, far away: the k nearest come after them."""
    table = builders.make_table(tmp_path / "t", rows=range(200))
    table.flush(table.shards[0], Put(range(60), 500_000))
    vector = [1000.0, 500.0, -1000.0, 0.5]
    found = open_table(table.uri).read(nearest=Nearest(column="vector", vector=vector, k=5))
    by_hand = sorted(
        (distance("l2", vector, row["vector"]), row["n"])
        for row in table.truth().values()
        if row["vector"] is not None
    )
    assert found.read_all()["n"].to_pylist() == [n for _, n in by_hand[:5]]


# ---- many rows


def test_many_rows_in_many_batches(tmp_path: Path) -> None:
    """More than a group of batches, in the base and in a generation."""
    table = builders.make_table(tmp_path / "t", "utf8+int32", rows=range(30_000))
    table.flush(table.shards[0], Put(range(0, 12_000, 2), 100), Delete(range(1, 3_000, 2)))
    reads, truth = open_table(table.uri), table.truth()
    numbers = [row["n"] for row in truth.values()]
    assert sorted(reads.read(columns=["n"]).read_all()["n"].to_pylist()) == sorted(numbers)
    few = reads.read(columns=["n"], filter="n < 3000").read_all()
    assert len(few) == sum(n < 3000 for n in numbers)
    limited = reads.read(columns=["userId", "order"], limit=25_000).read_all()
    assert len(limited) == 25_000
    assert {tuple(row.values()) for row in limited.to_pylist()} <= truth.keys()


def test_rows_come_as_a_stream(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(20_000))
    reader: Any = open_table(table.uri).read(columns=["n"])
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.read_next_batch().num_rows < 20_000
