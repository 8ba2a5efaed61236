"""Some drills; `make drill` does a thousand. And whether drills notice what they are there for."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills import checker
from tests.drills.damage import CLASSES, Damage, class_of, damage, list_files
from tests.drills.drill import Look, Looks, Outcome, copy, look_at, merge_over, run_drill
from tests.drills.run import FINDINGS, prepare_tables, run_many, show
from tests.drills.tables import KINDS, load_truth
from tests.support.sampling import many

HERE = Path(__file__).parent
SEEDS = range(100, 100 + many(1000, 20))
RIGHT = Look(name="latest", result="right")
WRONG = Look(name="latest", result="wrong", said="1 rows lost")
LOST = Look(name="repair", result="told", said="mended, but not without loss (MW-J03)")
TOLD = Look(name="verify", result="told", said="Corruption 8")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_tables(tmp_path_factory.mktemp("drills"))


@pytest.mark.integration
@pytest.mark.long
def test_no_damage_is_passed_over_in_silence(tmp_path: Path) -> None:
    outcomes = list(run_many(SEEDS, tmp_path, repairs=True))
    assert not [show(outcome) for outcome in outcomes if outcome["verdict"] in FINDINGS]
    verdicts = Counter(outcome["verdict"] for outcome in outcomes)
    assert verdicts["mended"] > 2 and verdicts["harmless"] > 2, verdicts


@pytest.mark.integration
@pytest.mark.parametrize("name", KINDS)
def test_a_sound_table_is_right_for_all(tables: Path, name: str) -> None:
    looks = look_at(tables / name, load_truth(tables, name))
    assert looks.is_right, looks
    assert len(looks.reads) > 6


@pytest.mark.integration
def test_the_checker_notices_a_row_that_is_lost_or_other(tables: Path) -> None:
    truth = load_truth(tables, "policy")
    rows = checker.read_latest(tables / "policy", truth, wal=True)
    assert checker.differences(rows, truth.wal) == []
    lost, other = list(rows)[:2]
    changed = {key: row for key, row in rows.items() if key != lost}
    changed[other] = {**rows[other], "total": 0}
    assert checker.differences(changed, truth.wal) == [
        f"1 rows lost ({lost})",
        f"1 rows other ({other})",
    ]


@pytest.mark.integration
def test_a_merge_does_not_hide_that_the_newest_version_is_gone(
    tables: Path, tmp_path: Path
) -> None:
    copy(tables / "plain", tmp_path / "t")
    (tmp_path / "t" / list_files(tmp_path / "t")["table manifest"][-1]).unlink()
    assert "MW-C08" in merge_over(tmp_path / "t", load_truth(tables, "plain")).said


@pytest.mark.integration
def test_a_drill_repeats(tables: Path, tmp_path: Path) -> None:
    first, second = (run_drill(tables, 4, tmp_path / name).damages for name in ("first", "second"))
    assert first == second


@pytest.mark.integration
def test_tables_have_files_of_every_kind_and_copies_leave_them_alone(
    tables: Path, tmp_path: Path
) -> None:
    found = {what for name in KINDS for what in list_files(tables / name)}
    assert found >= CLASSES.keys() - {"generation deletions"}
    before = {file: file.read_bytes() for file in (tables / "plain").rglob("*") if file.is_file()}
    copy(tables / "plain", tmp_path / "copy")
    for seed in range(20):
        damage(tmp_path / "copy", random.Random(seed))
    assert {file: file.read_bytes() for file in before} == before


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


def outcome(
    verify: Look, read: Look, *, what: str = "shard manifest", merged: Look | None = None,
    repair: Look | None = None, after: tuple[Look, Look] | None = None,
) -> str:  # fmt: skip
    looks = None if after is None else Looks(verify=after[0], reads=[after[1]])
    return Outcome(
        seed=1, table="t", damages=[Damage(kind="flip", what=what, path="x")],
        before=Looks(verify=verify, reads=[read]), merged=merged, repair=repair, after=looks,
    ).verdict  # fmt: skip


FINE = Look(name="verify", result="right")


@pytest.mark.parametrize(
    ("verdict", "found"),
    [
        (lambda: outcome(FINE, RIGHT), "harmless"),
        (lambda: outcome(FINE, WRONG), "silent"),
        (lambda: outcome(FINE, WRONG, what="data file"), "beyond"),
        (lambda: outcome(TOLD, WRONG), "noticed"),
        (lambda: outcome(TOLD, WRONG, merged=WRONG), "merged over"),
        (lambda: outcome(FINE, Look(name="latest", result="told")), "told by reads"),
        (lambda: outcome(TOLD, Look(name="latest", result="crashed")), "crashed"),
        (lambda: outcome(FINE, Look(name="checker: base", result="wrong")), "others only"),
        (lambda: outcome(TOLD, WRONG, repair=RIGHT, after=(FINE, RIGHT)), "mended"),
        (lambda: outcome(TOLD, WRONG, repair=RIGHT, after=(FINE, WRONG)), "silent after repair"),
        (
            lambda: outcome(TOLD, RIGHT, repair=RIGHT, after=(TOLD, RIGHT)),
            "not mended, said so neither",
        ),
        (lambda: outcome(TOLD, RIGHT, repair=TOLD, after=(TOLD, WRONG)), "worse after repair"),
        (
            lambda: outcome(TOLD, RIGHT, repair=LOST, after=(FINE, WRONG)),
            "told what is lost or left",
        ),
        (
            lambda: outcome(TOLD, RIGHT, repair=LOST, after=(TOLD, WRONG)),
            "verify disagrees with repair",
        ),
        (
            lambda: outcome(TOLD, RIGHT, repair=TOLD, after=(FINE, RIGHT)),
            "verify disagrees with repair",
        ),
        (
            lambda: outcome(TOLD, WRONG, repair=TOLD, after=(TOLD, WRONG)),
            "told what is lost or left",
        ),
    ],
)
def test_verdicts(verdict: Callable[[], str], found: str) -> None:
    assert verdict() == found


def test_the_checker_shares_no_code_with_memwal() -> None:
    """`tables` runs memwal's jobs, as part of a table's life, and asks them for no row."""
    for name, allowed in (("checker", set()), ("damage", set()), ("tables", {"memwal"})):
        tree = ast.parse((HERE / f"{name}.py").read_text())
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {text for text in imported if text.startswith("memwal")} <= allowed
        ours = {text for text in imported if text.startswith("tests.")}
        assert ours <= {"tests.drills.tables", "tests.torture.lsm"}
