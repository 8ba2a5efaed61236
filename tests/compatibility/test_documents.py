"""What memwal writes down, by one build and read by the other, either way round.

Each kind of document is made by commands of the one build. The other has to go by it as its maker
does, with fields that it doesn't know as well; of another format it has to refuse it, and name the
file. What is only a cache it may pass over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.compatibility import inside
from tests.compatibility.builds import CURRENT, Build, previous
from tests.support import builders
from tests.support.builders import Put

pytestmark = pytest.mark.nightly

SHORT = ("--retention", "0s", "--grace", "0s", "--allow-short-retention")
COLLECT = ("garbage", "--execute", "--wal", *SHORT)
HELD, REFUSED, UNSUPPORTED, CORRUPT = 4, 5, 7, 8


class Place:
    """A table, and the source of its ingests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = builders.make_table(folder / "t", rows=range(8), indexed=True)
        self.copy = folder / "copy"

    def flush(self, *keys: int) -> None:
        self.table.flush(self.table.shards[0], Put(keys, 10_000 + keys[0]))

    def run(self, build: Build, command: str, *words: str, code: int = 0) -> dict[str, Any]:
        """The part of a command's document that is about the table."""
        at = self.copy if self.copy.exists() else self.table.uri
        local = ("--engine", "local") if command in _ENGINES else ()
        found = build.tell(*command.split(), at, *words, *local, code=code)
        (told,) = found["tables"]
        return {**told, "job": found["job"]}

    def rows(self, build: Build, *words: str) -> list[str]:
        return sorted(json.dumps(row) for row in self.run(build, "read", *words)["rows"])


_ENGINES = {"merge", "garbage", "maintain"}
Make = Callable[[Place, Build], None]
Use = Callable[[Place, Build], object]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of document: how it comes to be, where it is, and commands that go by it.

    `use` fails where the document isn't understood as its maker did. `asks` is a command that has
    to refuse it in another format, by the exit code `refused`. A cache has none: it is passed over.
    """

    make: Make
    path: str
    use: Use
    asks: tuple[str, ...] = ()
    refused: int = 0


# ---- leases


def hold(place: Place, build: Build) -> None:
    """The claim of a merge that runs on another host."""
    place.flush(9)
    place.run(build, "merge")
    place.flush(10)
    (claim,) = find(place, "lease/0*.json")
    document = json.loads(claim.read_text())
    later = document["expires_at_nanos"] + 10**15
    changed = {"holder": "me@elsewhere:1", "released": False, "expires_at_nanos": later}
    claim.write_text(json.dumps({**document, **changed}))


def wait(place: Place, build: Build) -> None:
    error = place.run(build, "merge", code=HELD)["error"]
    assert "elsewhere" in error and "for merge" in error
    place.run(build, "status")


# ---- runs


def merge(place: Place, build: Build) -> None:
    place.flush(9)
    place.run(build, "merge")


def list_runs(place: Place, build: Build) -> None:
    told = place.run(build, "runs")
    (run,) = told["runs"]
    assert (run["job"], run["outcome"]) == ("merge", "done")
    assert run["summary"]["rows_inserted"] == 1
    assert told["unreadable"] == 0


# ---- checkpoints


def keep(place: Place, build: Build) -> None:
    place.flush(9)
    place.run(build, "checkpoint create", "moment")
    place.flush(10)


def read_moment(place: Place, build: Build) -> None:
    assert len(place.rows(build, "--checkpoint", "moment")) == 9
    # What it needs is kept.
    place.run(build, "merge")
    for _ in range(2):
        place.run(build, *COLLECT)
    assert len(place.rows(build, "--checkpoint", "moment")) == 9


# ---- ingests


def source(place: Place) -> str:
    file = place.folder / "rows.parquet"
    if not file.exists():
        rows = [place.table.row(key, key) for key in range(20, 30)]
        pq.write_table(pa.Table.from_pylist(rows, schema=place.table.dataset.schema), file)
    return str(file)


def ingest(place: Place, build: Build) -> None:
    words = ("--id", "one", "--rows-per-chunk", "4", "--shard", place.table.shards[0])
    place.run(build, "ingest", source(place), *words)


def ingest_again(place: Place, build: Build) -> None:
    words = ("--id", "one", "--rows-per-chunk", "4", "--shard", place.table.shards[0])
    assert place.run(build, "ingest", source(place), *words)["outcome"] == "nothing_to_do"
    assert len(place.rows(build)) == 18


# ---- snapshots


def snapshot(place: Place, build: Build) -> None:
    place.flush(9)
    place.run(build, "snapshot")


def read_snapshot(place: Place, build: Build) -> None:
    told = place.run(build, "read", "--consistency", "snapshot")
    assert len(told["rows"]) == 9
    assert told["taken_at"] is not None, told


# ---- settled


def settle(place: Place, build: Build) -> None:
    """A table at rest, whose MemWAL is initialised again when nothing else tells of the former."""
    for key in (9, 10):
        place.flush(key)
    place.run(build, "quiesce", "--yes", *SHORT)
    dataset = place.table.dataset
    dataset.drop_index("__lance_mem_wal")
    dataset.initialize_mem_wal()
    place.table.dataset.cleanup_old_versions(older_than=timedelta(0))


def go_on(place: Place, build: Build) -> None:
    place.flush(11)
    place.run(build, "merge")
    assert len(place.rows(build)) == 11


# ---- adoptions


def adopt(place: Place, build: Build) -> None:
    """A clone that let go of the progress that it had inherited."""
    for key in (9, 10):
        place.flush(key)
    place.run(build, "merge")
    dataset = place.table.dataset
    dataset.deep_clone(str(place.copy), dataset.version)
    with lance.dataset(place.copy).mem_wal_writer(place.table.shards[0]) as writer:
        row = place.table.row(12, 1)
        writer.put(pa.Table.from_pylist([row], schema=dataset.schema))
    place.run(build, "init", "--adopt-clone")


def collect_clone(place: Place, build: Build) -> None:
    assert len(place.rows(build)) == 11
    place.run(build, "merge")
    place.run(build, *COLLECT)
    assert len(place.rows(build)) == 11


# ---- caches


def collect(place: Place, build: Build) -> None:
    """As many versions as are worth a cache."""
    for number in range(64):
        place.table.dataset.update_config({"number": str(number)})
    place.flush(10)
    place.run(build, "merge")
    for _ in range(2):
        place.run(build, "garbage", "--execute", "--wal")


def collect_more(place: Place, build: Build) -> None:
    place.flush(11)
    place.run(build, "merge")
    for _ in range(2):
        place.run(build, *COLLECT)
    assert len(place.rows(build)) == 10
    place.run(build, "verify")


KINDS = {
    "lease": Kind(
        make=hold, path="lease/0*.json", use=wait, asks=("merge", "{table}"), refused=CORRUPT
    ),
    "run": Kind(make=merge, path="runs/*.json", use=list_runs, asks=("runs", "{table}")),
    "checkpoint": Kind(
        make=keep,
        path="checkpoints/*.json",
        use=read_moment,
        asks=("read", "{table}", "--checkpoint", "moment"),
        refused=CORRUPT,
    ),
    "plan of an ingest": Kind(
        make=ingest,
        path="ingest/one/*/plan.json",
        use=ingest_again,
        asks=("ingest", "{table}", "{source}", "--id", "one"),
        refused=UNSUPPORTED,
    ),
    "progress of an ingest": Kind(
        make=ingest, path="ingest/one/*/progress/*/*.json", use=ingest_again
    ),
    "snapshot": Kind(
        make=snapshot,
        path="snapshot.json",
        use=read_snapshot,
        asks=("read", "{table}", "--consistency", "snapshot"),
    ),
    "settled": Kind(
        make=settle, path="settled/*.json", use=go_on, asks=("merge", "{table}"), refused=REFUSED
    ),
    "adopted": Kind(
        make=adopt,
        path="adopted/*.json",
        use=collect_clone,
        asks=(COLLECT[0], "{table}", *COLLECT[1:]),
        refused=CORRUPT,
    ),
    "versions": Kind(make=collect, path="cache/retained_versions.json", use=collect_more),
}


def find(place: Place, path: str) -> list[Path]:
    at = place.copy if place.copy.exists() else Path(place.table.uri)
    found = sorted((at / "_maintenance").glob(path))
    assert found, (path, [*(at / "_maintenance").rglob("*")])
    return found


def change(place: Place, path: str, **fields: object) -> None:
    for file in find(place, path):
        document = json.loads(file.read_text())
        file.write_text(json.dumps({**document, **fields}))


WAYS = ("forward", "back")


def pair(way: str) -> tuple[Build, Build]:
    """Who writes, and who reads."""
    return (previous(), CURRENT) if way == "forward" else (CURRENT, previous())


@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_a_document_means_the_same_to_both_builds(
    name: str, way: str, has_more: bool, tmp_path: Path
) -> None:
    """Also with a field that the reader doesn't know."""
    kind, (writer, reader) = KINDS[name], pair(way)
    place = Place(tmp_path)
    kind.make(place, writer)
    change(place, kind.path, **({"later": {"than": ["this"]}} if has_more else {}))
    kind.use(place, reader)


@pytest.mark.parametrize("way", WAYS)
def test_the_mark_of_a_rescue_means_the_same(way: str, tmp_path: Path) -> None:
    writer, reader = pair(way)
    place = Place(tmp_path)
    place.flush(9)
    asked = (place.table.uri, place.table.shards[0])
    writer.call(inside.store_mark, *asked)
    change(place, "rescue/*.json", later=1)
    assert reader.call(inside.read_mark, *asked) == [3, 7, "WAL entry 7", 5]
    change(place, "rescue/*.json", format=99)
    (file,) = find(place, "rescue/*.json")
    assert file.name in reader.call(inside.read_mark, *asked)


@pytest.mark.parametrize("way", WAYS)
def test_a_policy_means_the_same(way: str) -> None:
    writer, reader = pair(way)
    text = writer.call(inside.write_policy)
    meant = writer.call(inside.read_policy, text)
    assert meant["columns"] == {"n": "sum", "tags": {"operator": "list_append", "cap": 5}}
    more = {**json.loads(text), "later": 1}
    assert reader.call(inside.read_policy, json.dumps(more)) == meant
    other = {**json.loads(text), "format": 99}
    assert "memwal.policy" in reader.call(inside.read_policy, json.dumps(other))


# Of the round that it belongs to, an ingest's plan has the format.
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for name in KINDS if name != "progress of an ingest"])
def test_a_document_of_another_format_is_refused_by_name(
    name: str, way: str, tmp_path: Path
) -> None:
    kind, (writer, reader) = KINDS[name], pair(way)
    place = Place(tmp_path)
    kind.make(place, writer)
    change(place, kind.path, format=99)
    if not kind.asks:
        kind.use(place, reader)
        return
    if name == "settled":
        place.flush(11)
    at = place.copy if place.copy.exists() else place.table.uri
    words = [word.format(table=at, source=source(place)) for word in kind.asks]
    done = reader.run(*words, "--json")
    told = done.stdout + done.stderr
    if reader is CURRENT or name not in UNNAMED:
        assert done.returncode == kind.refused, told
        assert any(file.name in told for file in find(place, kind.path)), told
    else:
        assert done.returncode == UNNAMED[name], told


UNNAMED = {"lease": HELD, "run": 0, "settled": REFUSED}
"""What v0.1.0 does not name: it takes such a lease for one that is held."""
