"""Looks at one table that are only made on request: all its run records, and its garbage.

They cost more than the feed's looks. So one command runs at a time, only a few answers are kept,
and an answer is reused until it is old.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from memwal.errors import Usage
from memwal_airflow.page.answers import Run, Unclear, read_answer, read_runs
from memwal_airflow.page.feed import Clock
from memwal_airflow.page.plots import iso
from memwal_airflow.page.source import Order
from memwal_airflow.processes.process import Runner

RUNS_MAX = 1_000
GROUPS_MAX = 50
Kind = Literal["runs", "garbage"]


@dataclass(frozen=True, kw_only=True)
class DetailLimits:
    """Limits of these looks. An answer older than `old_seconds` is asked for again."""

    seconds_max: float = 120.0
    old_seconds: float = 300.0
    kept_max: int = 8
    stdout_bytes_max: int = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Held:
    """What garbage collection says about all things of one kind, action and reason."""

    kind: str
    action: str
    reason: str
    count: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Detail:
    """The last good answer and the `error` since; `looking` says that a newer one is on its way."""

    at: datetime | None = None
    asked: float = float("-inf")
    looking: bool = False
    error: str | None = None
    runs: tuple[Run, ...] = ()
    held: tuple[Held, ...] = ()
    warnings: tuple[str, ...] = ()


class Details:
    """Answers at once with what is known, and looks in the background."""

    def __init__(
        self,
        source: Callable[[], Order],
        runner: Runner,
        clock: Clock,
        limits: DetailLimits | None = None,
    ) -> None:
        self._source = source
        self._runner = runner
        self._clock = clock
        self._limits = limits or DetailLimits()
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Kind, str, str | None], Detail] = OrderedDict()
        self._works = False
        self._closed = False

    def look(self, kind: Kind, name: str, uri: str | None) -> Detail:
        """Return what is known of a table, and start a look if that is old.

        A name whose address (`uri`) has changed is a different table.
        """
        with self._lock:
            key = (kind, name, uri)
            found = self._known.get(key, Detail())
            old = self._clock.monotonic() - found.asked > self._limits.old_seconds
            if old and not found.looking and not self._closed:
                found = replace(found, looking=True)
            self._known[key] = found
            self._known.move_to_end(key)
            while len(self._known) > self._limits.kept_max:
                self._known.popitem(last=False)
            if found.looking and not self._works:
                self._works = True
                threading.Thread(target=self._work, name="memwal-page-details", daemon=True).start()
            return found

    def recall(self, kind: Kind, name: str, uri: str | None) -> Detail:
        """Return what is known of a table, without starting a look."""
        with self._lock:
            return self._known.get((kind, name, uri), Detail())

    def close(self) -> None:
        """End the running command, and start no more."""
        with self._lock:
            self._closed = True
        self._runner.close()

    def _work(self) -> None:
        while True:
            with self._lock:
                waiting = [key for key, found in self._known.items() if found.looking]
                if not waiting or self._closed:
                    self._works = False
                    return
                key = waiting[-1]  # somebody is looking at what was asked for last
            try:
                change = self._ask(*key[:2])
            except Unclear as unclear:
                change = {"error": str(unclear)}
            except Exception as error:
                change = {"error": f"the look failed: {type(error).__name__}"}
            with self._lock:
                if key in self._known:
                    done = {"looking": False, "asked": self._clock.monotonic(), **change}
                    self._known[key] = replace(self._known[key], **done)

    def _ask(self, kind: Kind, name: str) -> dict[str, Any]:
        """Run one command, and return the changed fields of the Detail. Raises Unclear."""
        order, limits = self._source(), self._limits
        options = [f"--limit={RUNS_MAX}"] if kind == "runs" else ["--engine=local", "--dry-run"]
        try:
            argv, environment = order.command(kind, [*options, "--json"], [name])
        except (Usage, ValueError) as error:
            raise Unclear(order.problem or str(error)) from None
        output = self._runner.run(argv, environment, limits.seconds_max, limits.stdout_bytes_max)
        clean = order.redactor.clean
        try:
            table = read_answer(output, kind).get(name) or {}
        except Unclear as unclear:
            raise Unclear(clean(str(unclear)) or "") from None
        trouble = table.get("error")
        change: dict[str, Any] = {"error": clean(str(trouble)) if trouble else None}
        if kind == "runs" and "runs" in table:
            change |= {"runs": read_runs(table, order.redactor)[0], "at": self._clock.now()}
        if kind == "garbage" and "items" in table:
            held = tuple(replace(h, reason=clean(h.reason) or "") for h in sum_up(table))
            warnings = tuple(clean(str(text)) for text in table.get("warnings") or ())
            change |= {"held": held, "warnings": warnings, "at": self._clock.now()}
        return change


def sum_up(table: Mapping[str, Any]) -> list[Held]:
    """Sum up a garbage report by kind, action and reason, the most bytes first.

    Groups beyond the bound are combined into one line.
    """
    sums: dict[tuple[str, str, str], list[int]] = {}
    for item in table["items"]:
        key = (str(item["kind"]), str(item["action"]), str(item["reason"]))
        found = sums.setdefault(key, [0, 0])
        found[0] += 1
        found[1] += int(item["bytes"])
    ordered = sorted(sums.items(), key=lambda pair: (-pair[1][1], -pair[1][0], pair[0]))
    held = [
        Held(kind=kind, action=action, reason=reason, count=count, bytes=size)
        for (kind, action, reason), (count, size) in ordered[:GROUPS_MAX]
    ]
    if rest := [numbers for _, numbers in ordered[GROUPS_MAX:]]:
        count, size = (sum(column) for column in zip(*rest, strict=True))
        reason = "for other reasons: `memwal garbage` lists them"
        held.append(Held(kind="more", action="keep", reason=reason, count=count, bytes=size))
    return held


def show_garbage(detail: Detail, now: datetime) -> dict[str, Any]:
    """Show what a look at the garbage found."""
    return {
        "now": iso(now),
        "looked_at": iso(detail.at),
        "looking": detail.looking,
        "error": detail.error,
        "held": [asdict(held) for held in detail.held],
        "warnings": detail.warnings,
    }
