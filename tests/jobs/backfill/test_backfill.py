"""`memwal backfill`: many tables, the largest first, again after a kill, others go on."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from memwal.cli import main
from memwal.format.layout import parse_shard_id
from memwal.jobs.merge.plan import CommitShape
from memwal.jobs.merge.store import LanceFold
from memwal.model import ShardStatus
from memwal.run.workers import cancel
from memwal.store.records.lease import StoredLeases
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.command import run_here
from tests.support.nursery import Started, start

pytestmark = pytest.mark.integration

WAIT_SECONDS = 120


def make(folder: Path, name: str, generations: int, *, shards: int = 1) -> Table:
    """A table with an index, and so many generations in each shard."""
    table = builders.make_table(folder / name, rows=range(20), shards=shards, indexed=True)
    for number in range(generations):
        for shard in table.shards:
            table.flush(shard, Put([number, 100 + number], number))
    return table


def command(*arguments: str) -> tuple[int, dict[str, Any], str]:
    done = run_here("backfill", *arguments, "--engine", "local", "--json")
    return done.returncode, json.loads(done.stdout), done.stderr


def jobs_of(table: dict[str, Any]) -> dict[str, str]:
    return {job["job"]: job["outcome"] for job in table["jobs"]}


def check_caught_up(table: Table) -> None:
    builders.check_merged(table)
    state = table.stores.views.table().mem_wal
    assert state.index_catchup and set(map(frozenset, state.index_catchup.values())) == {
        frozenset(state.merged)
    }


@pytest.fixture
def tables(tmp_path: Path) -> list[Table]:
    return [make(tmp_path, name, n) for name, n in (("small", 1), ("large", 6), ("middle", 3))]


def test_the_largest_backlog_goes_first_and_a_rerun_has_nothing_to_do(tables: list[Table]) -> None:
    names = [t.uri for t in tables]
    code, found, log = command(*names, "--concurrency", "1")
    assert (code, found["outcome"], found["finished"]) == (0, "done", True)
    assert [t["table"] for t in found["tables"]] == [names[1], names[2], names[0]]
    said = [line.split(": merge")[0].split()[-1] for line in log.splitlines() if ": merge " in line]
    assert said == [t["table"] for t in found["tables"]], "begun in that order"
    for told in found["tables"]:
        assert jobs_of(told) == {"merge": "done", "index-catchup": "done"}
        assert told["stage"] == "finished" and told["version_after"] > told["version_before"]
    for table in tables:
        check_caught_up(table)
    code, again, _ = command(*names)
    assert (code, again["outcome"]) == (0, "nothing_to_do")


def test_an_important_table_goes_before_larger_backlogs(
    tmp_path: Path, tables: list[Table]
) -> None:
    file = tmp_path / "memwal.toml"
    text = "[defaults]\npriority = 3\n"
    for table, priority in zip(tables, ("4", "3", None), strict=True):
        text += f'[tables.{Path(table.uri).name}]\nuri = "{table.uri}"\n'
        text += f"priority = {priority}\n" if priority else ""
    file.write_text(text)
    code, found, _ = command("--all", "--config", str(file), "--dry-run")
    assert code == 0
    assert [t["table"] for t in found["tables"]] == ["small", "large", "middle"]


def test_a_dry_run_tells_the_order_and_what_the_jobs_would_do(tables: list[Table]) -> None:
    def everything() -> dict[str, int]:
        return {
            str(p): p.stat().st_mtime_ns for table in tables for p in Path(table.uri).rglob("*")
        }

    tables[0].merge_all()  # what is left there is its index
    before = everything()
    code, found, _ = command(*(t.uri for t in tables), "--dry-run")
    assert (code, found["dry_run"], found["outcome"]) == (0, True, "done")
    assert [t["table"] for t in found["tables"]] == [tables[n].uri for n in (1, 2, 0)]
    both = {"merge": "done", "index-catchup": "nothing_to_do"}
    last = {"merge": "nothing_to_do", "index-catchup": "done"}
    assert [jobs_of(t) for t in found["tables"]] == [both, both, last]
    assert everything() == before
    code, found, _ = command(*(t.uri for t in tables), "--dry-run", "--jobs", "merge")
    assert [t["outcome"] for t in found["tables"]] == ["done", "done", "nothing_to_do"]


def test_others_go_on_beside_refused_held_and_missing_tables(
    tmp_path: Path, tables: list[Table]
) -> None:
    sealed, held, good = tables
    builders.set_status(sealed, sealed.shards[0], ShardStatus.SEALED)
    StoredLeases(held.stores.objects, held.stores.clock, holder="ann@one:1").acquire("merge")
    missing = str(tmp_path / "no-such-table")
    code, found, _ = command(sealed.uri, missing, held.uri, good.uri)
    by_name = {t["table"]: t for t in found["tables"]}
    assert (code, found["outcome"]) == (6, "partial")
    assert {name: t["outcome"] for name, t in by_name.items()} == {
        sealed.uri: "refused", held.uri: "held", missing: "failed", good.uri: "done",
    }  # fmt: skip
    assert jobs_of(by_name[sealed.uri]) == {"merge": "refused"}, "what follows a refusal waits"
    assert "ann@one:1" in by_name[held.uri]["error"]
    assert found["tables"][-1]["table"] == missing
    check_caught_up(good)
    code, alone, _ = command(held.uri)
    assert (code, alone["outcome"]) == (4, "held")


def test_shards_and_generations_bound_the_merges(tmp_path: Path) -> None:
    one, two = make(tmp_path, "one", 3, shards=2), make(tmp_path, "two", 2)
    bounds = ("--jobs", "merge", "--shard", one.shards[0], "--until-generation", "2")
    _, found, _ = command(one.uri, two.uri, *bounds)
    assert one.progress() == {one.shards[0]: 2}
    assert two.progress() == {}
    assert [t["outcome"] for t in found["tables"]] == ["done", "nothing_to_do"]
    assert jobs_of(found["tables"][0]) == {"merge": "done"}
    code, found, _ = command(one.uri, "--shard", "0" * 32)
    assert code == 2
    assert str(parse_shard_id("0" * 32)) in found["error"]


@pytest.mark.parametrize("arguments", [("--jobs", "garbage"), ("--deadline", "1")])
def test_a_wrong_request_is_refused(tmp_path: Path, arguments: tuple[str, str]) -> None:
    code, found, _ = command(str(tmp_path), *arguments)
    assert (code, arguments[0] in found["error"]) == (2, True)


# ---- ended on the way

MANY = 6
STALLS_AT = 3


def stall(arguments: list[str], stalled_file: str) -> None:
    """Runs in a process of its own: the command, whose third commit on a shard makes the file, and
    waits for the run to be cancelled.
    """
    commit = LanceFold.commit

    def stalled(self: LanceFold, shape: CommitShape, mark: int) -> object:
        if mark == STALLS_AT:
            Path(stalled_file).touch()
            cancel._cancelled.wait()
        return commit(self, shape, mark)

    LanceFold.commit = stalled  # type: ignore[method-assign,assignment]
    main(["backfill", *arguments])


@contextmanager
def at_work(tables: Sequence[Table], report: Path) -> Iterator[Started]:
    """A run that has finished the first table and stalls in the second; killed at the end."""
    arguments = [
        *(t.uri for t in tables), "--engine", "local", "--json", "--concurrency", "1",
        "--generations-per-commit-max", "1", "--report", str(report),
    ]  # fmt: skip
    stalled_file = report.with_name("stalled")
    process = start(stall, arguments, str(stalled_file))
    first, second = tables

    def is_there() -> bool:
        assert process.poll() is None, process.communicate()
        if not stalled_file.exists() or not report.exists():
            return False
        return states_in(report) == {first.uri: "finished", second.uri: "running"}

    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_there():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.communicate()


def states_in(report: Path) -> dict[str, str]:
    return {t["table"]: t["stage"] for t in json.loads(report.read_text())["tables"]}


@pytest.fixture
def unequal(tmp_path: Path) -> tuple[Table, Table]:
    """The first is begun first, being wide; the second takes more commits."""
    wide = builders.make_table(tmp_path / "wide", rows=range(5), indexed=True)
    wide.flush(wide.shards[0], Put(range(3000), 1))
    many = builders.make_table(tmp_path / "many", rows=range(5), indexed=True)
    for number in range(MANY):
        many.flush(many.shards[0], Put([number], number))
    return wide, many


@pytest.mark.nightly
def test_a_killed_run_leaves_a_clear_summary_and_the_next_goes_on(
    tmp_path: Path, unequal: tuple[Table, Table]
) -> None:
    wide, many = unequal
    file = tmp_path / "report.json"
    before = int(many.dataset.version)
    with at_work(unequal, file) as process:
        process.kill()
        process.wait()
    left = json.loads(file.read_text())
    assert left["finished"] is False
    done, begun = left["tables"]
    assert (done["outcome"], jobs_of(done)["merge"]) == ("done", "done")
    assert begun["outcome"] == "held"
    assert "run again to go on" in begun["error"]
    builders.check_versions(many, before)

    many.stores.leases.break_("the holder was killed")
    code, again, _ = command(wide.uri, many.uri, "--report", str(file))
    assert code == 0
    went_on, had_nothing = again["tables"]
    assert went_on["jobs"][0]["shards"][0]["from_generation"] == STALLS_AT - 1
    assert set(jobs_of(had_nothing).values()) == {"nothing_to_do"}
    assert json.loads(file.read_text()) == again
    assert again["finished"] is True
    for table in unequal:
        check_caught_up(table)


@pytest.mark.nightly
def test_a_cancelled_run_tells_what_was_done(tmp_path: Path, unequal: tuple[Table, Table]) -> None:
    _, many = unequal
    before = int(many.dataset.version)
    with at_work(unequal, tmp_path / "report.json") as process:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    found = json.loads(out)
    assert json.loads((tmp_path / "report.json").read_text()) == found
    assert "cancelled" in found["error"]
    done, stopped = found["tables"]
    assert (done["outcome"], stopped["outcome"]) == ("done", "partial")
    assert jobs_of(stopped) == {"merge": "partial", "index-catchup": "held"}
    assert many.progress() == {many.shards[0]: STALLS_AT}, "the commit it was in, and none after"
    lease = many.stores.leases.current()
    assert lease is not None
    assert lease.released
    builders.check_versions(many, before)
