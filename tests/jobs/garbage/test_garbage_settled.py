"""What a former MemWAL index had merged: it goes by the record of that, and by nothing less."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.format import layout
from memwal.store.records.former_merges import list_named, name_in_config
from tests.support import builders
from tests.support.builders import Put, Table

pytestmark = pytest.mark.integration

KEEP = ("--retention", "90d", "--grace", "0s", "--allow-short-retention", "--wal")
SHORT = ("--retention", "0s", "--grace", "0s", "--allow-short-retention", "--wal")


def run(table: Table, job: str, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [job, table.uri, *arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)["tables"][0]
    return found


def collect(table: Table, *arguments: str) -> set[str]:
    """Why generations stay, once garbage has gone over them twice."""
    run(table, "garbage", "--execute", *(arguments or KEEP))
    items = run(table, "garbage", "--execute", *(arguments or KEEP))["items"]
    return {item["reason"] for item in items if item["kind"] in ("generation", "orphan")}


def renew(table: Table) -> None:
    table.dataset.drop_index(layout.MEM_WAL_INDEX_NAME)
    table.dataset.initialize_mem_wal()


def folders(table: Table, shard: str = "*") -> list[str]:
    return sorted(path.name for path in Path(table.uri, layout.MEM_WAL).glob(f"{shard}/*_gen_*"))


def records(table: Table) -> list[Path]:
    named = list_named(table.dataset.config())
    return [Path(table.uri) / layout.settled_path(record_id) for record_id in named]


def make_table(folder: Path) -> Table:
    table = builders.make_table(folder / "t", rows=range(20), shards=2, indexed=True)
    for n, shard in enumerate(table.shards):
        table.flush(shard, Put([2 * n, 30 + n], 1))
        table.flush(shard, Put([2 * n], 2))
    return table


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    table = make_table(tmp_path_factory.mktemp("made"))
    run(table, "quiesce", "--retention", "0s", "--allow-short-retention")
    renew(table)
    assert len(folders(table)) == 4
    return table


@pytest.fixture
def renewed(made: Table, tmp_path: Path) -> Table:
    """By the book: quiesced, within the grace, and initialised again."""
    return made.copied(tmp_path / "t")


def test_what_a_quiesce_dropped_is_collected(renewed: Table) -> None:
    files = [f for f in Path(renewed.uri, layout.MEM_WAL).glob("*/*_gen_*/**/*") if f.is_file()]
    size = sum(file.stat().st_size for file in files)
    told = run(renewed, "status")
    assert told["reclaimable"] == {"generations": 4, "bytes": size, "collected": False}
    assert told["reclaimable_bytes"] == size
    before = renewed.base_rows()
    items = run(renewed, "garbage", *KEEP)["items"]
    assert sum(i["bytes"] for i in items if i["action"] == "delete") == size
    assert not collect(renewed)
    assert not folders(renewed)
    for shard in renewed.shards:
        assert len(list(Path(renewed.uri, layout.wal_folder(shard)).iterdir())) == 2
    assert run(renewed, "status")["reclaimable"]["bytes"] == 0
    builders.same_rows(renewed.base_rows(), before, "collected")
    for n, shard in enumerate(renewed.shards):
        renewed.flush(shard, Put([2 * n, 40 + n], 3))
    assert run(renewed, "verify")["outcome"] == "done"
    run(renewed, "merge")
    builders.same_rows(renewed.base_rows(), renewed.truth(), "merged")


def change_entries(table: Table, **changes: Any) -> None:
    for path in records(table):
        document = json.loads(path.read_bytes())
        for entry in document["shards"].values():
            entry |= changes
        path.write_text(json.dumps(document))


def test_what_is_pending_since_stays(renewed: Table) -> None:
    """Whatever the record says, what is listed was not settled."""
    change_entries(renewed, generation=9)
    shard = renewed.shards[0]
    renewed.flush(shard, Put([5, 40], 3))
    assert collect(renewed) == {"pending: merged up to 2 only"}
    assert [layout.parse_generation_folder(name) for name in folders(renewed)] == [3]
    run(renewed, "merge")
    builders.same_rows(renewed.base_rows(), renewed.truth(), "merged")


def test_within_the_grace_it_stays(renewed: Table) -> None:
    run(renewed, "garbage", "--execute", "--retention", "90d", "--wal")
    assert len(folders(renewed)) == 4


def test_a_branch_that_came_after_needs_none(renewed: Table) -> None:
    renewed.dataset.create_branch("later")
    assert not collect(renewed)


def unname(table: Table) -> None:
    """As a restore to before the record does; versions that name it are retained."""
    table.dataset.update_config(name_in_config("", list_named(table.dataset.config())))


def lose(table: Table) -> None:
    for path in records(table):
        path.unlink()


def cut(table: Table) -> None:
    for path in records(table):
        path.write_bytes(path.read_bytes()[:-9])


def change_shards(table: Table) -> None:
    """It is of shards that were there before."""
    change_entries(table, manifest_digest="0" * 64)


@pytest.mark.parametrize("spoil", [unname, lose, cut, change_shards])
def test_without_its_proof_it_stays(renewed: Table, spoil: Callable[[Table], None]) -> None:
    renewed.dataset.update_config({"user": "a version more"})
    spoil(renewed)
    # Former versions show it, too: what they show is not recorded while one can't be read.
    lance.dataset(renewed.uri).restore()
    assert collect(renewed) == {"pending: not known to be merged"}
    assert len(folders(renewed)) == 4


def test_an_older_version_that_names_no_record_needs_it(tmp_path: Path) -> None:
    """The next garbage records what nobody had; a tag has the MemWAL index from before that."""
    table = make_table(tmp_path)
    run(table, "maintain", "--execute", "--retention", "0s", "--allow-short-retention")
    renew(table)
    table.dataset.tags.create("bare", table.dataset.version)
    bare = table.dataset.version
    assert collect(table) == {f"version {bare} is retained and has merged up to 0 only"}
    assert records(table)
    assert len(folders(table)) == 4
    table.dataset.tags.delete("bare")
    assert not collect(table, *SHORT)
    assert not folders(table)
    run(table, "verify")


def test_a_version_from_before_needs_it(tmp_path: Path) -> None:
    """Whatever took the generation off the list although an older version was retained."""
    table = builders.make_table(tmp_path / "t", rows=range(20), indexed=True)
    shard, older = table.shards[0], table.dataset.version
    table.flush(shard, Put([1, 50], 1))
    table.dataset.tags.create("older", older)
    table.merge_all()
    builders.unlist_generation(table, shard, 1)
    run(table, "quiesce")
    renew(table)
    assert collect(table) == {f"version {older} is retained and has merged up to 0 only"}
    table.dataset.checkout_version("older").restore()
    assert len(folders(table)) == 1
    assert collect(table) == {"pending: not known to be merged"}
