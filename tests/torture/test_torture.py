"""A minute of torture; `make torture` takes as long as one likes."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from tests.torture.actors import HAS_LANCEDB
from tests.torture.history import History, now
from tests.torture.judge import judge
from tests.torture.run import run_many

HERE = Path(__file__).parent
NEEDS_LANCEDB = pytest.mark.skipif(
    not HAS_LANCEDB,
    reason="no LanceDB here: scripts/setup_lancedb.sh installs it, if it can",
)
SEED = int(os.environ.get("MEMWAL_TORTURE_SEED", "1"))


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "done"),
    [
        ("clone", {"merge", "writes of pylance"}),
        ("restore", {"snapshot", "restore"}),
        ("wal", {"writes of pylance", "writes of ingest"}),
        ("followed", {"merge", "changes"}),
        ("renewed", {"quiesce", "drop MemWAL", "init"}),
        pytest.param("lancedb", {"merge", "writes of LanceDB"}, marks=NEEDS_LANCEDB),
    ],
)
def test_nothing_is_lost_or_doubled(tmp_path: Path, scenario: str, done: set[str]) -> None:
    [verdict] = run_many([scenario], SEED, 6, 6, tmp_path / scenario)
    assert verdict.findings == [], tmp_path
    assert verdict.acked > 5 and sum(verdict.judged.values()) > 10
    assert done <= verdict.did.keys()


def test_the_oracle_shares_no_code_with_memwal() -> None:
    """`warm` imports it into the processes that run its commands, and takes nothing from it."""
    imported = {
        name
        for file in HERE.glob("*.py")
        if file.name != Path(__file__).name
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "lance" in imported
    assert not [n for n in imported if n.startswith("memwal")]
    others = {n for n in imported if n.startswith("tests.") and "torture" not in n}
    assert others == {"tests.support.s3server"}  # which has nothing of memwal


def kept(folder: Path, *rows: list[list[int]], policy: bool = False) -> list[str]:
    """What is found in a history of three puts of key 2, all flushed, and reads of these rows."""
    history = History(folder)
    facts = {"table": "t", "shard": "s"}
    history.add("table", table="t", rows=[], policy=policy, keyed=True, clone=False, shards=["s"])
    for op in (1000, 1001, 1002):
        history.add("op", **facts, session=1, id=op, deletes=False, keys=[2])
        history.add("ack", id=op)
    history.add("flush", **facts, session=1, begin=now())
    for found in rows:
        history.add(
            "read", table="t", level="latest", by="latest", begin=10**18, exit=0, rows=found,
            keys=None, moment=(2 * 10**18, 3 * 10**18), name="", said="",
        )  # fmt: skip
    return [finding.what for finding in judge(folder).findings]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([[2, 1002]], []),
        ([[2, 1001]], ["acknowledged rows lost"]),
        ([], ["acknowledged rows lost"]),
        ([[2, 1002], [2, 1001]], ["row twice"]),
        ([[2, 7]], ["row that nobody wrote", "acknowledged rows lost"]),
        ([[2, 1002], [3, 1002]], ["row that nobody wrote"]),
    ],
)
def test_what_the_oracle_finds(tmp_path: Path, rows: list[list[int]], found: list[str]) -> None:
    assert sorted(kept(tmp_path, rows)) == sorted(found)


def test_operands_count_once(tmp_path: Path) -> None:
    from tests.torture.judge import operand

    log = [1000, 1001, 1002]
    right = [2, 1002, sum(map(operand, log)), log]
    assert kept(tmp_path, [right], policy=True) == []
    twice = [2, 1002, sum(map(operand, [*log, 1002])), [*log, 1002]]
    assert "folded wrongly" in kept(tmp_path, [twice], policy=True)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([[2, 1000]], []),
        ([[2, 1000], [4, 1002]], []),
        ([[4, 1002]], []),
        # A delete comes with the rows that were put before it.
        ([], ["acknowledged rows lost"]),
    ],
)
def test_the_base_alone_shows_states_that_were(
    tmp_path: Path, rows: list[list[int]], found: list[str]
) -> None:
    history, facts = History(tmp_path), {"table": "t", "shard": "s", "session": 1}
    history.add("table", table="t", rows=[], policy=False, keyed=True, clone=False, shards=["s"])
    flushed = [(999, True, [2]), (1000, False, [2])]
    for op, deletes, keys in [*flushed, (1002, False, [4]), (1003, True, [2])]:
        history.add("op", **facts, id=op, deletes=deletes, keys=keys)
        history.add("ack", id=op)
        if op == 1000:
            history.add("flush", **facts, begin=now())
            history.add("job", table="t", name="merge", args=[], begin=now(), exit=0, said="")
    history.add(
        "read", table="t", level="base", by="base", begin=now(), exit=0, rows=rows, keys=None,
        moment=None, name="", said="",
    )  # fmt: skip
    assert [finding.what for finding in judge(tmp_path).findings] == found
