"""One drill: a copy of a table, damages drawn from a seed, and whether anybody is told."""

from __future__ import annotations

import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import memwal
from memwal.errors import MemWalError
from memwal.read import Search
from tests.drills import checker
from tests.drills.damage import Damage, damage
from tests.drills.tables import KINDS, Row, Rows, Truth, load_truth
from tests.torture.lsm import Unreadable

RIGHT, WRONG, TOLD, CRASHED = "right", "wrong", "told", "crashed"


@dataclass(frozen=True, kw_only=True)
class Look:
    """How one read or check ended: right, wrong, told (a clear error), or crashed."""

    name: str
    result: str
    said: str = ""

    @property
    def is_others(self) -> bool:
        """Whether memwal has no part in it."""
        return self.name.startswith("checker")


@dataclass(frozen=True, kw_only=True)
class Looks:
    """What memwal's checks, and everybody's reads, make of a table."""

    verify: Look
    reads: Sequence[Look]

    @property
    def wrong(self) -> set[str]:
        """The reads of memwal's that are wrong."""
        return {read.name for read in self.reads if read.result == WRONG and not read.is_others}

    @property
    def is_right(self) -> bool:
        return all(look.result == RIGHT for look in (self.verify, *self.reads))

    @property
    def told(self) -> set[str] | None:
        """The reads that fail, where nothing is wrong otherwise."""
        if self.verify.result != RIGHT or self.wrong:
            return None
        return {look.name for look in self.reads if look.result == TOLD and not look.is_others}

    @property
    def crashed(self) -> bool:
        ours = (self.verify, *(read for read in self.reads if not read.is_others))
        return any(look.result == CRASHED for look in ours)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a drill. Without a repair, `repair` and `after` are None.

    `merged` is how a merge of a damaged table went, None if no check had told of the damage: wrong
    if it took the damage out of sight.
    """

    seed: int
    table: str
    damages: Sequence[Damage]
    before: Looks
    merged: Look | None = None
    repair: Look | None = None
    after: Looks | None = None
    seconds: float = 0

    @property
    def is_beyond(self) -> bool:
        return any(damage.is_beyond for damage in self.damages)

    @property
    def verdict(self) -> str:
        """In a word; those in `run.FINDINGS` break a promise."""
        if self.before.crashed:
            return "crashed"
        if self.before.wrong and self.before.verify.result == RIGHT:
            return "beyond" if self.is_beyond else "silent"
        if self.merged is not None and self.merged.result == WRONG and not self.is_beyond:
            return "merged over"
        if self.repair is not None and self.after is not None:
            return self._judge_repair(self.repair, self.after)
        if self.before.verify.result != RIGHT:
            return "noticed"
        if any(read.result == TOLD for read in self.before.reads if not read.is_others):
            return "told by reads"
        if self.before.is_right:
            return "harmless"
        return "beyond" if self.is_beyond else "others only"

    def _judge_repair(self, repair: Look, after: Looks) -> str:
        if repair.result == CRASHED or after.crashed:
            return "crashed in repair"
        if repair.result == RIGHT:
            if after.is_right:
                return "harmless" if self.before.is_right else "mended"
            if self.is_beyond:
                return "beyond"
            failed = {read.name for read in self.before.reads if read.result == TOLD}
            if after.told and after.told <= failed:
                return "told by reads"
            wrong = any(read.result == WRONG for read in after.reads)
            return "silent after repair" if wrong else "not mended, said so neither"
        says_mended = "MW-J03" in repair.said  # though not without loss
        if says_mended != (after.verify.result == RIGHT):
            return "verify disagrees with repair"
        if after.wrong - self.before.wrong and not self.is_beyond and not says_mended:
            return "worse after repair"
        return "told what is lost or left"


def copy(source: Path, place: Path) -> None:
    """A copy of a table whose files are links until they are written."""
    shutil.copytree(source, place, copy_function=os.link)


def choose(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> tuple[str, random.Random]:
    chance = random.Random(seed)
    return chance.choice(kinds), chance


def run_drill(tables: Path, seed: int, work: Path, *, repairs: bool = False) -> Outcome:
    """Damage a copy of a table, and look at it; then repair it, and look again."""
    begin = time.monotonic()
    name, chance = choose(seed)
    place = work / f"{name}-{seed}"
    copy(tables / name, place)
    damages = [damage(place, chance) for _ in range(chance.choice([1, 1, 1, 1, 2]))]
    truth = load_truth(tables, name)
    before = look_at(place, truth)
    merged = None
    if before.verify.result == TOLD:
        copy(place, work / "merged")
        merged = merge_over(work / "merged", truth)
        shutil.rmtree(work / "merged")
    repair = repair_table(place) if repairs else None
    after = look_at(place, truth.when_repaired()) if repairs else None
    return Outcome(
        seed=seed, table=name, damages=damages, before=before, merged=merged, repair=repair,
        after=after, seconds=time.monotonic() - begin,
    )  # fmt: skip


def look_at(place: Path, truth: Truth) -> Looks:
    return Looks(verify=verify_table(place), reads=read_all(place, truth))


def verify_table(place: Path) -> Look:
    return _look("verify", lambda: memwal.open_table(str(place), engine="local").verify() and None)


def merge_over(place: Path, truth: Truth) -> Look:
    """Merge a damaged table: wrong if rows are, and no check tells of it any more."""

    def merge() -> str | None:
        table = memwal.open_table(str(place), engine="local")
        table.merge()
        table.verify()
        return _compare(checker.as_rows(table.read(), truth), truth.latest)

    return _look("merge", merge)


def repair_table(place: Path) -> Look:
    """`memwal repair --execute --accept-loss --yes`; what is lost or left is an error."""
    from memwal.config import Config, resolve_table
    from memwal.jobs.repair.job import RepairOptions, run_repair
    from memwal.jobs.repair.report import RepairTableReport
    from memwal.jobs.repair.request import RepairRequest
    from memwal.run.progress import LogProgress
    from memwal.run.reports import take_report

    options = RepairOptions(
        tables=[resolve_table(str(place), Config(), {})],
        engine="local",
        confirm=lambda table, damages: True,
        find_place=lambda name: resolve_table(name, Config(), {}),
        request=RepairRequest(execute=True, accept_loss=True, yes=True, idle_seconds=0),
    )

    def repair() -> None:
        take_report(run_repair(options, LogProgress()), RepairTableReport)

    return _look("repair", repair)


def _look(name: str, read: Callable[[], str | None]) -> Look:
    """A read says in what it is wrong, None for nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wrong = read()
        except MemWalError as error:
            text = f"{type(error).__name__} {error.exit_code}: {error}"
            # Exit code 1 sends people to look for a store that is away.
            return Look(name=name, result=CRASHED if error.exit_code == 1 else TOLD, said=text)
        except Unreadable as wrong_rows:
            return Look(name=name, result=WRONG, said=str(wrong_rows))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of Lance is no Exception
            return Look(name=name, result=CRASHED, said=f"{type(error).__name__}: {error}")
    return Look(name=name, result=WRONG if wrong else RIGHT, said=wrong or "")


def read_all(place: Path, truth: Truth) -> list[Look]:
    """Every kind of read, each against the truth."""
    looks = [_look(name, read) for name, read in _reads(place, truth).items()]
    return [
        Look(name=look.name, result=TOLD, said=look.said)
        if look.is_others and look.result == CRASHED
        else look
        for look in looks
    ]


def _reads(place: Path, truth: Truth) -> Mapping[str, Callable[[], str | None]]:
    table = memwal.open_table(str(place), engine="local")

    def ours(wanted: Sequence[Rows], **how: Any) -> Callable[[], str | None]:
        return lambda: _compare(checker.as_rows(table.read(**how), truth), wanted)

    def where(is_in: Callable[[Row], bool]) -> list[Rows]:
        return [{k: r for k, r in rows.items() if is_in(r)} for rows in truth.latest]

    def search() -> str | None:
        query = Search(column="text", query="word3")
        found = checker.as_rows(table.read(search=query, limit=1000), truth)
        rows = {k: {c: v for c, v in row.items() if c != "_score"} for k, row in found.items()}
        return _compare(rows, where(lambda row: row["text"].startswith("word3 ")))

    reads = {
        "latest": ours(truth.latest),
        "with WAL": ours([truth.wal], with_wal=True),
        "by filter": ours(where(lambda row: row["cat"] == "red"), filter="cat = 'red'"),
        "checker: base": lambda: _compare(checker.read_base(place, truth), [truth.base]),
        "checker: latest": lambda: _compare(checker.read_latest(place, truth), truth.latest),
        "checker: WAL": lambda: _compare(checker.read_latest(place, truth, wal=True), [truth.wal]),
    }
    for row in list(truth.wal.values())[::9]:
        key = {name: row[name] for name in truth.keys}
        reads[f"by key {key}"] = ours(where(partial(_has_key, key)), key=key)
    for name, rows in truth.moments.items():
        reads[f"checkpoint {name}"] = ours([rows], checkpoint=name)
    if truth.snapshots:
        lately = memwal.open_table(str(place), engine="local", consistency="snapshot")
        states = (*truth.snapshots, *truth.latest)
        reads["by snapshot"] = lambda: _compare(checker.as_rows(lately.read(), truth), states)
    if truth.indexed:
        reads["by number"] = ours(where(lambda row: row["n"] == 25), filter="n = 25")
        reads["by text"] = search
    return reads


def _has_key(key: Mapping[str, Any], row: Row) -> bool:
    return key.items() <= row.items()


def _compare(found: Rows, states: Sequence[Rows]) -> str | None:
    """What differs from all of these states, row by row; nothing where each row is of one."""
    every = found.keys() | set(chain(*states))
    odd = {key for key in every if found.get(key) not in [rows.get(key) for rows in states]}
    if not odd:
        return None
    return "; ".join(checker.differences(found, states[0])) or f"{len(odd)} rows"
