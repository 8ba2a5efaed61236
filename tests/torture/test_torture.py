"""Minutes of torture at night, and what its oracle finds; `make torture` takes ten and more."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.sampling import SEED
from tests.torture.actors import HAS_LANCEDB
from tests.torture.damage import Damage, class_of
from tests.torture.drill import Look, Looks, Outcome
from tests.torture.history import History, now
from tests.torture.judge import Verdict, judge, operand

HERE = Path(__file__).parent
OURS = {"tests.support.s3server", "tests.support.watching", "tests.faults.s3proxy"}
"""What the torture may use besides: nothing in there is memwal's."""
DONE = {
    "clone": {"merge", "writes of pylance"},
    "restore": {"snapshot", "restore"},
    "wal": {"writes of pylance", "writes of ingest"},
    "followed": {"merge", "changes"},
    "renewed": {"quiesce", "drop MemWAL", "init"},
    "mixed": {"merge", "writes of pylance"},
    "counters": {"merge", "writes of pylance"},
    "keyless": {"writes of pylance"},
    "schema": {"merge", "add_column"},
    "columns": {"merge", "rescue", "writes of pylance"},
    "doubles": {"merge", "writes of pylance"},
    "erased": {"erase", "writes of erase"},
    "toxic": {"merge", "toxics"},
    "backed-up": {"backup", "garbage"},
    "watched": {"wait", "merge"},
    "lancedb": {"merge", "writes of LanceDB"},
    "plain": {"maintain", "writes of pylance"},  # beside so many updates a compaction may lose
}


def torture(scenario: str, folder: Path, seconds: float, drills: int) -> Verdict:
    """A table under torture, of the day, in which nothing is found."""
    from tests.torture.run import run_many

    [verdict] = run_many([scenario], SEED, seconds, seconds, folder, drills)
    assert verdict.findings == [], folder
    return verdict


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", DONE)
def test_nothing_is_lost_or_doubled(tmp_path: Path, scenario: str) -> None:
    if scenario == "lancedb" and not HAS_LANCEDB:
        pytest.skip("no LanceDB here: scripts/setup_lancedb.sh installs it, if it can")
    for seconds in (12, 48):  # a slow machine comes to too little in the first
        verdict = torture(scenario, tmp_path / f"{seconds}", seconds, 0)
        if DONE[scenario] <= verdict.did.keys() and sum(verdict.judged.values()) > 10:
            break
    assert verdict.acked > 5 and sum(verdict.judged.values()) > 10
    assert DONE[scenario] <= verdict.did.keys()


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", ["mixed", "counters", "watched"])
def test_no_damage_is_passed_over_in_silence(tmp_path: Path, scenario: str) -> None:
    verdict = torture(scenario, tmp_path, 4, 30)
    assert verdict.did["damage: mended"] > 0 and verdict.did["damage: harmless"] > 2


def test_the_oracle_shares_no_code_with_memwal() -> None:
    """`warm` imports it into the processes that run its commands, and takes nothing from it."""

    def find_imports(file: Path) -> set[str]:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        named = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
        return {*named, *(str(n.module) for n in nodes if isinstance(n, ast.ImportFrom))}

    files = [file for file in HERE.glob("*.py") if file.name != Path(__file__).name]
    files += [HERE.parents[1] / f"{name.replace('.', '/')}.py" for name in OURS]
    imported = {name for file in files for name in find_imports(file)}
    assert "lance" in imported
    assert not [name for name in imported if name.startswith("memwal")]
    others = {n for n in imported if n.startswith("tests.") and "torture" not in n}
    assert others == OURS | {"tests.support.child_server"}


# ---- the oracle


class Story:
    """A history of table `t` with one shard, told call by call, and what the oracle finds in it."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        self.folder, self.history = folder, History(folder)
        usual = {"rows": [], "policy": False, "keyed": True, "clone": False, "shards": ["s"]}
        self.history.add("table", table="t", **{**usual, **facts})

    def put(self, *ops: int, key: int = 2, deletes: bool = False, acked: bool = True) -> None:
        for op in ops:
            self.history.add(
                "op", table="t", shard="s", session=op // 1000, id=op, deletes=deletes, keys=[key]
            )
            if acked:
                self.history.add("ack", id=op)

    def flush(self, session: int) -> None:
        self.history.add("flush", table="t", shard="s", session=session, begin=now())

    def job(self, name: str, code: int = 0, said: str = "") -> None:
        self.history.add("job", table="t", name=name, args=[], begin=now(), exit=code, said=said)

    def read(
        self, level: str, *rows: list[Any], moment: tuple[int, int] | None = None, marks: Any = ()
    ) -> None:
        self.history.add(
            "read", table="t", level=level, by=level, begin=now(), exit=0, rows=rows, keys=None,
            moment=moment, name="", said="", marks=marks,
        )  # fmt: skip

    def found(self) -> list[str]:
        return sorted(finding.what for finding in judge(self.folder).findings)


LOST = ["acknowledged rows lost"]
NEVER = ["a state that never was"]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([[2, 1002]], []),
        ([[2, 1001]], LOST),
        ([], LOST),
        ([[2, 1002], [2, 1001]], ["row twice"]),
        ([[2, 7]], [*LOST, "row that nobody wrote"]),
        ([[2, 1002], [3, 1002]], ["row that nobody wrote"]),
    ],
)
def test_what_the_oracle_finds(tmp_path: Path, rows: list[list[int]], found: list[str]) -> None:
    story = Story(tmp_path)
    story.put(1000, 1001, 1002)
    story.flush(1)
    story.read("latest", *rows)
    assert story.found() == found


@pytest.mark.parametrize(
    ("level", "merged", "rows", "found"),
    [
        ("base", False, [[2, 0], [2, 0]], []),
        ("base", False, [], []),
        ("latest", False, [], LOST),
        ("latest", False, [[2, 1000], [2, 1000]], ["row twice"]),
        ("base", True, [[2, 1000]], []),
        ("base", True, [[2, 1000], [2, 1000]], ["row twice"]),
        ("base", True, [[2, 0], [2, 0]], LOST),
    ],
)
def test_a_key_is_there_twice_until_it_is_written(
    tmp_path: Path, level: str, merged: bool, rows: list[list[int]], found: list[str]
) -> None:
    story = Story(tmp_path, rows=[[2, 0]], doubled=[2])
    story.put(1000)
    story.flush(1)
    if merged:
        story.job("merge")
    story.read(level, *rows)
    assert story.found() == found


def test_values_are_of_the_column_that_they_were_written_for(tmp_path: Path) -> None:
    story = Story(tmp_path)
    facts = {"table": "t", "shard": "s", "session": 1, "deletes": False, "keys": [2]}
    story.history.add("op", **facts, id=1000, marks=[7])
    for mark in ([1000, 7, 7], [1000, 8, None], [1000, 8, 7], [1000, 7, None]):
        story.read("latest", [2, 1000], marks=[mark])
    assert story.found() == ["value of another column"] * 2


def test_refusals_are_for_columns_that_change(tmp_path: Path) -> None:
    story = Story(tmp_path, columns=True)
    begin = now()
    story.job("merge", 5, "(MW-K12)")
    story.job("merge", 5, "(MW-K31)")
    story.history.add("columns", table="t", begin=begin)
    story.job("merge", 5, "(MW-K12)")
    assert story.found() == ["refused without a change of columns"] * 2


def test_operands_count_once(tmp_path: Path) -> None:
    log = [1000, 1001, 1002]
    for number, wanted in enumerate((log, [*log, 1002])):
        (folder := tmp_path / str(number)).mkdir()
        story = Story(folder, policy=True)
        story.put(*log)
        story.flush(1)
        story.read("latest", [2, 1002, sum(map(operand, wanted)), wanted])
        assert story.found() == ["folded wrongly"] * number


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([[2, 1000]], []),
        ([[2, 1000], [4, 1002]], []),
        ([[4, 1002]], []),
        # A delete comes with the rows that were put before it.
        ([], LOST),
    ],
)
def test_the_base_alone_shows_states_that_were(
    tmp_path: Path, rows: list[list[int]], found: list[str]
) -> None:
    story = Story(tmp_path)
    story.put(999, deletes=True)
    story.put(1000)
    story.flush(1)
    story.job("merge")
    story.put(1002, key=4)
    story.put(1003, deletes=True)
    story.read("base", *rows)
    assert story.found() == found


@pytest.mark.parametrize(
    ("name", "code", "found"),
    [
        ("merge", 6, []),
        ("merge", 8, ["sound table called corrupt"]),
        ("ingest", 5, ["ingest that can't go on"]),
        ("backup", 6, ["backup that can't go on"]),
    ],
)
def test_how_commands_may_end(tmp_path: Path, name: str, code: int, found: list[str]) -> None:
    story = Story(tmp_path)
    story.job(name, code)
    assert story.found() == found


# ---- damages


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("_versions/18446744073709551613.manifest", "table manifest"),
        ("_mem_wal/0a/manifest/01.binpb", "shard manifest"),
        ("_mem_wal/0a/0badcafe_gen_3/data/x.lance", "generation data"),
        ("_mem_wal/0a/0badcafe_gen_3/bloom_filter.bin", "generation's rest"),
        ("_maintenance/checkpoints/a.json", "checkpoint"),
        ("_maintenance/runs/1.json", "record"),
        ("README", None),
    ],
)
def test_classes(path: str, what: str | None) -> None:
    assert class_of(path) == what


@pytest.mark.parametrize(
    ("kind", "what", "same_size", "is_beyond"),
    [
        ("flip", "data file", False, True),
        ("flip", "shard manifest", False, False),
        ("swap", "data file", True, True),
        ("swap", "data file", False, False),
        ("delete", "data file", False, False),
        ("cut", "index file", False, False),
        ("replay", "WAL entry", False, True),
        ("delete", "WAL entry", False, True),
        ("cut", "WAL entry", False, False),
        ("replay", "table manifest", True, False),
    ],
)
def test_what_nothing_can_tell(kind: str, what: str, same_size: bool, is_beyond: bool) -> None:
    done = Damage(kind=kind, what=what, path="x", same_size=same_size)
    assert done.is_beyond is is_beyond


RIGHT, WRONG, TOLD, CRASHED = (Look(result=r) for r in ("right", "wrong", "told", "crashed"))


def verdict(
    verify: Look, read: Look, repair: Look = RIGHT, verify_after: Look = RIGHT,
    read_after: Look = RIGHT, *, merged: Look | None = None, other: Look = RIGHT,
    what: str = "shard manifest",
) -> str:  # fmt: skip
    def looks(verify: Look, read: Look) -> Looks:
        return Looks(verify=verify, ours={"latest": read}, others={"latest": other})

    return Outcome(
        seed=1, damages=[Damage(kind="flip", what=what, path="x")], before=looks(verify, read),
        merged=merged, repair=repair, after=looks(verify_after, read_after),
    ).verdict  # fmt: skip


@pytest.mark.parametrize(
    ("given", "named", "found"),
    [
        ((RIGHT, RIGHT), {}, "harmless"),
        ((RIGHT, WRONG), {}, "silent"),
        ((RIGHT, WRONG), {"what": "data file"}, "beyond"),
        ((TOLD, WRONG), {}, "mended"),
        ((TOLD, WRONG), {"merged": WRONG}, "merged over"),
        ((TOLD, CRASHED), {}, "crashed"),
        ((CRASHED, RIGHT), {}, "crashed"),
        ((RIGHT, TOLD, RIGHT, RIGHT, TOLD), {}, "told by reads"),
        ((RIGHT, RIGHT), {"other": WRONG}, "others only"),
        ((TOLD, WRONG, CRASHED), {}, "crashed in repair"),
        ((TOLD, WRONG, RIGHT, RIGHT, WRONG), {}, "silent after repair"),
        ((TOLD, RIGHT, RIGHT, TOLD), {}, "not mended, said so neither"),
        ((TOLD, RIGHT, TOLD, TOLD, WRONG), {}, "worse after repair"),
        ((TOLD, WRONG, TOLD, TOLD, WRONG), {}, "told what is lost or left"),
        ((TOLD, RIGHT, TOLD, RIGHT, RIGHT), {}, "verify disagrees with repair"),
    ],
)
def test_verdicts(given: tuple[Look, ...], named: Mapping[str, Any], found: str) -> None:
    assert verdict(*given, **named) == found
