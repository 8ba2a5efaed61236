"""Damages to copies of a tortured table: who is told, and what a repair makes of it.

What a sound copy shows, to memwal and to whoever reads it by the format's documents, is what a
damaged one has to show, unless it is an error that is shown. Each command is a process: Lance ends
some of them over a damaged file.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.torture import lsm
from tests.torture.actors import Place
from tests.torture.damage import Damage, damage

if TYPE_CHECKING:
    from tests.torture.run import World

Row = list[Any]
"""As a history has it: key, operation, and what is folded."""
Rows = Mapping[int, Row]
Run = Callable[[Sequence[str]], tuple[int, str]]
"""Runs a command: its exit code, and what it said."""

RIGHT, WRONG, TOLD, CRASHED = "right", "wrong", "told", "crashed"
FINDINGS = frozenset(
    {
        "silent",
        "merged over",
        "crashed",
        "others only",
        "crashed in repair",
        "not mended, said so neither",
        "silent after repair",
        "worse after repair",
        "verify disagrees with repair",
    }
)
"""Verdicts that break a promise. Others than memwal read wrongly in `others only`."""
OTHERS = ("base", "latest", "wal")
"""What is read without memwal."""
_TELL = range(2, 9)
_MEND = ("--execute", "--yes")
# An error of Lance's with a zero byte in its text, which Arrow's interface for C can't hand on
# (pylance 14.0.2): the process aborts, before it has returned a row.
_ABORTED = "Error string has a null byte in it"


@dataclass(frozen=True, kw_only=True)
class Look:
    """How one command or read ended: right, wrong, told (a clear error), or crashed."""

    result: str
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Looks:
    """What memwal's checks, and everybody's reads, make of a table."""

    verify: Look
    ours: Mapping[str, Look]
    others: Mapping[str, Look] = field(default_factory=dict)

    def are(self, result: str) -> set[str]:
        """memwal's reads that ended so."""
        return {name for name, look in self.ours.items() if look.result == result}

    @property
    def is_right(self) -> bool:
        return all(
            look.result == RIGHT
            for look in (self.verify, *self.ours.values(), *self.others.values())
        )

    @property
    def crashed(self) -> bool:
        return self.verify.result == CRASHED or bool(self.are(CRASHED))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a drill. `merged` is how a merge of what verify had told of went: wrong if it
    took the damage out of sight.
    """

    seed: int
    damages: Sequence[Damage]
    before: Looks
    merged: Look | None
    repair: Look
    after: Looks

    @property
    def verdict(self) -> str:
        """In a word; those in FINDINGS break a promise."""
        beyond = any(done.is_beyond for done in self.damages)
        before, after = self.before, self.after
        if before.crashed or (self.merged and self.merged.result == CRASHED):
            return "crashed"
        if before.are(WRONG) and before.verify.result == RIGHT:
            return "beyond" if beyond else "silent"
        if self.merged and self.merged.result == WRONG and not beyond:
            return "merged over"
        if self.repair.result == CRASHED or after.crashed:
            return "crashed in repair"
        if self.repair.result == RIGHT:
            return self._judge_mended(beyond)
        if after.verify.result == RIGHT:
            return "verify disagrees with repair"
        if after.are(WRONG) - before.are(WRONG) and not beyond:
            return "worse after repair"
        return "told what is lost or left"

    def _judge_mended(self, beyond: bool) -> str:
        before, after = self.before, self.after
        if after.is_right:
            return "harmless" if before.is_right else "mended"
        if beyond:
            return "beyond"
        sound = after.verify.result == RIGHT and not after.are(WRONG)
        if sound and after.are(TOLD) and after.are(TOLD) <= before.are(TOLD):
            return "told by reads"
        if sound and not after.are(TOLD):
            return "others only"
        is_silent = after.are(WRONG) or any(o.result == WRONG for o in after.others.values())
        return "silent after repair" if is_silent else "not mended, said so neither"

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Read:
    """One of memwal's reads: what follows `read TABLE`, and the rows that it has to give."""

    words: Sequence[str] = ()
    level: str = "latest"
    keep: Callable[[Row], bool] = lambda row: True


@dataclass(frozen=True, kw_only=True)
class Drill:
    """A sound copy of a table, what it holds, and how commands are run."""

    sound: Path
    run: Run
    tell: Callable[[Path], Mapping[str, Any]]
    """What each level of OTHERS holds, by somebody else than memwal: rows, or why not."""
    reads: Mapping[str, Read]
    truth: Mapping[str, Rows]
    """By level."""

    def damaged(self, seed: int, folder: Path) -> Outcome:
        """Damage a copy and look at it; then repair it, and look again."""
        chance = random.Random(seed)
        place = copy(self.sound, folder / "damaged")
        damages = [damage(place, chance) for _ in range(chance.choice([1, 1, 1, 1, 2]))]
        before, merged = self.look_at(place), None
        if before.verify.result == TOLD:
            merged = self._merge_over(copy(place, folder / "merged"))
        repair = self._look("repair", place, _MEND)
        after = self.look_at(place, repaired=True)
        return Outcome(
            seed=seed, damages=damages, before=before, merged=merged, repair=repair, after=after
        )

    def look_at(self, place: Path, *, repaired: bool = False) -> Looks:
        others = self.tell(place)
        return Looks(
            verify=self._look("verify", place),
            ours={name: self._read(place, read, repaired) for name, read in self.reads.items()},
            others={name: self._judge(others[name], Read(level=name), repaired) for name in OTHERS},
        )

    def _merge_over(self, place: Path) -> Look:
        """Merge a damaged table: wrong if rows are, and no check tells of it any more."""
        for job, words in (("merge", ["--engine", "local"]), ("verify", [])):
            look = self._look(job, place, words)
            if look.result != RIGHT:
                return look
        return self._read(place, Read(), False)

    def _look(self, job: str, place: Path, words: Sequence[str] = ()) -> Look:
        code, said = self.run([job, str(place), *words])
        if code == 0:
            return Look(result=RIGHT, said=said)
        is_clear = code in _TELL and "Traceback (most recent" not in said
        result = TOLD if is_clear or _ABORTED in said else CRASHED
        return Look(result=result, said=f"{code}: {said[-1500:]}")

    def _read(self, place: Path, read: Read, repaired: bool) -> Look:
        look = self._look("read", place, read.words)
        if look.result != RIGHT:
            return look
        return self._judge(told(json.loads(look.said)), read, repaired)

    def _judge(self, rows: list[Row] | dict[str, str], read: Read, repaired: bool) -> Look:
        """Each row is of one of the states that a read may show, and none is missing from all."""
        if isinstance(rows, dict):
            [(result, said)] = rows.items()
            return Look(result=result, said=said)
        levels = [read.level]
        if read.level == "snapshot":
            levels.append("latest")
        if repaired and read.level in ("latest", "snapshot"):
            levels.append("wal")  # a repair may have flushed it
        states = [{k: r for k, r in self.truth[one].items() if read.keep(r)} for one in levels]
        found = {row[0]: row for row in rows}
        if len(found) < len(rows):
            return Look(result=WRONG, said="a key is there twice")
        every = found.keys() | {key for state in states for key in state}
        odd = [key for key in every if found.get(key) not in [state.get(key) for state in states]]
        texts = [f"key {key}: {found.get(key)}, not {states[0].get(key)}" for key in odd[:3]]
        return Look(result=WRONG, said="; ".join(texts)) if odd else Look(result=RIGHT)


def drill(world: World, place: Place, count: int) -> None:
    """Damage copies of a table as it is left, and put on record what becomes of each."""
    folder = world.folder / "drills"
    folder.mkdir()
    sound = copy(Path(place.uri), folder / "sound")

    def run(words: Sequence[str]) -> tuple[int, str]:
        code, text, said = world.run(words, {})
        return code, text if code == 0 else said or text

    def tell(table: Path) -> dict[str, Any]:
        out = folder / "told"
        out.unlink(missing_ok=True)
        world.call(lsm.tell, replace(place, uri=str(table)), str(out))
        died = {level: {TOLD: "the process died"} for level in OTHERS}
        return json.loads(out.read_text()) if out.exists() else died

    truth = {level: {row[0]: row for row in rows} for level, rows in tell(sound).items()}
    newest = sorted(truth["wal"].values(), key=lambda row: row[1])
    half = newest[len(newest) // 2][1]
    reads = {
        "latest": Read(),
        "with WAL": Read(words=["--with-wal"], level="wal"),
        "by filter": Read(words=["--filter", f"n >= {half}"], keep=lambda row: row[1] >= half),
        "by snapshot": Read(words=["--consistency", "snapshot"], level="snapshot"),
    }
    for key in (newest[0][0], newest[-1][0]):
        words = place.key_words(key)
        reads[f"key {key}"] = Read(words=words, keep=lambda row, key=key: row[0] == key)
    if world.scenario.indexed:
        reads["by text"] = Read(words=["--search", "text=row"])
    for name in world.checkpoints[place.name]:
        reads[f"at {name}"] = Read(words=["--checkpoint", name], level=name)
    for read in reads.values():
        if read.level not in truth:
            rows = told(json.loads(run(["read", str(sound), *read.words])[1]))
            truth[read.level] = {row[0]: row for row in rows}
    made = Drill(sound=sound, run=run, tell=tell, reads=reads, truth=truth)
    looks = made.look_at(copy(sound, folder / "copy"))
    if not looks.is_right:
        world.fault("sound table shown otherwise", json.dumps(asdict(looks)))
    for number in range(count):
        outcome = made.damaged(world.seed * 1000 + number, folder)
        world.history.add("drill", table=place.name, **outcome.as_json())
        if outcome.verdict in FINDINGS:
            world.fault(f"damage: {outcome.verdict}", json.dumps(outcome.as_json()))


def told(document: Mapping[str, Any]) -> list[Row]:
    """The rows of a `memwal read`, as a history has them."""
    rows = document["tables"][0]["rows"]
    return [[row[name] for name in ("i", "n", "total", "log") if name in row] for row in rows]


def copy(source: Path, place: Path) -> Path:
    """A copy of a table whose files are links until they are written."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place, copy_function=os.link)
    return place
