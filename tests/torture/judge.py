"""The oracle: judges a history. It knows nothing of memwal, and what readers are promised only.

All that writers did to a shard is one sequence: sessions in the order of their claims, operations
in the order of a session. What a reader sees of a shard has to be the state after some prefix of it
(an operation that was never acknowledged may be in or not). The prefix may not be shorter than

- what was acknowledged before the read began: in the WAL for a reader of the WAL, flushed for one
  of the MemWAL, flushed before a refresh for one by the snapshot, before a merge for the base;
- what an earlier read of the same kind, or of one that sees less, has shown. A restore takes back
  what the base and the snapshot have shown, and nothing that the others have.

The base and the snapshot may lack keys that a later operation deletes. Keys that the base holds
twice at first may show both rows until they are written, and be taken out of it before they are.

Nor may it be longer than what was begun before the read ended. A row that nobody wrote, a row
that is there twice, and operands that were left out or counted twice are faults at once.

    python -m tests.torture.judge FOLDER
"""

from __future__ import annotations

import heapq
import json
import re
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path

from tests.torture.history import Event, load

BASE, SNAPSHOT, LATEST, WAL = range(4)
LEVELS = {"base": BASE, "snapshot": SNAPSHOT, "latest": LATEST, "wal": WAL}
MERGES = ("merge", "maintain", "quiesce", "wait")
REFRESHES = ("snapshot", "maintain")
FLUSHES = ("rescue", "quiesce")
_CORRUPT = 8
_REFUSED = (5, 6, 7, 8)
_COLUMNS = re.compile("MW-K(06|07|12)")
_GO_ON = ("ingest", "changes", "backup", "restore")
"""Commands that no other one, and no kill, may bring to a refusal."""
Interval = tuple[float, float]


def operand(op: int) -> int:
    """What an operation adds to its keys' sums."""
    return op * 7919 % 1000 + 1


@dataclass(slots=True)
class Op:
    """A put or a delete. Times are nanoseconds; infinity: it never was."""

    id: int
    session: int
    keys: Sequence[int]
    deletes: bool
    begin: float
    acked: float = inf
    flushed: float = inf
    position: int = -1


@dataclass(frozen=True)
class Finding:
    """Something that was promised otherwise."""

    what: str
    table: str
    line: int
    detail: str


class Timeline:
    """How far a sequence was at a time."""

    def __init__(self, points: Iterable[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._highest: list[int] = []
        for time, position in sorted(points):
            if time < inf:
                self._times.append(time)
                self._highest.append(max(position, self._highest[-1] if self._highest else -1))

    def before(self, time: float) -> int:
        place = bisect_left(self._times, time)
        return self._highest[place - 1] if place else -1


@dataclass
class Chain:
    """All that was done to one shard."""

    ops: list[Op] = field(default_factory=list)
    chains: dict[int, list[Op]] = field(default_factory=lambda: defaultdict(list))
    flushes: list[tuple[float, float, float]] = field(default_factory=list)
    """(begin, end, session)"""

    def settle(self) -> None:
        """Number the operations, and find when each was flushed."""
        self.ops.sort(key=lambda op: (op.session, op.id))
        self.flushes.sort()
        begins = [begin for begin, _, _ in self.flushes]
        for position, op in enumerate(self.ops):
            op.position = position
            for key in op.keys:
                self.chains[key].append(op)
            if op.session == 0:
                op.flushed = -1
                continue
            later = self.flushes[bisect_left(begins, op.acked) :] if op.acked < inf else ()
            op.flushed = next((end for _, end, session in later if session >= op.session), inf)
        self.acked = Timeline((op.acked, op.position) for op in self.ops)
        self.flushed = Timeline((op.flushed, op.position) for op in self.ops if op.acked < inf)
        self.begun = Timeline((op.begin, op.position) for op in self.ops)

    def intervals(self, key: int, seen: int | None) -> list[Interval]:
        """The prefixes after which the key shows this operation, or is absent."""
        chain = self.chains[key]
        shown = [-1] if seen is None else []
        shown += [
            place
            for place, op in enumerate(chain)
            if (op.deletes if seen is None else op.id == seen)
        ]
        found = []
        for place in shown:
            later = (op.position for op in chain[place + 1 :] if op.acked < inf)
            found.append((chain[place].position if place >= 0 else -1, next(later, inf)))
        return found


class Table:
    """One table's events, and what its reads have shown so far."""

    def __init__(self, event: Event) -> None:
        self.name = event["table"]
        self.policy, self.keyed = event["policy"], event["keyed"]
        self.is_clone = event["clone"]
        self.doubled = {*event.get("doubled", ())}
        self.start = event
        self.groups: dict[str, Chain] = defaultdict(Chain)
        self.ops: dict[int, Op] = {}
        self.events: list[Event] = []
        self.findings: list[Finding] = []
        self.written: dict[int, Sequence[int]] = {}
        """The columns' incarnations that an operation's writer saw."""
        self.moments: dict[str, tuple[int, str]] = {}
        self.judged: Counter[str] = Counter()
        by_shard: dict[tuple[str, int], list[int]] = defaultdict(list)
        for key, op in event["rows"]:
            by_shard[event["shards"][key % len(event["shards"])], op].append(key)
        for (shard, op), keys in by_shard.items():
            # Of session 0, acknowledged and merged before anything else.
            first = Op(op, 0, keys, False, -1, -1)
            self.groups[shard].ops.append(first)
            every = [*self.ops[op].keys, *keys] if op in self.ops else keys
            self.ops[op] = replace(first, keys=every)

    def take(self, event: Event) -> None:
        if event["kind"] == "op":
            op = Op(event["id"], event["session"], event["keys"], event["deletes"], event["at"])
            self.ops[op.id] = op
            self.written[op.id] = event.get("marks", ())
            self.groups[event["shard"]].ops.append(op)
        elif event["kind"] == "flush":
            flush = (event["begin"], event["at"], event["session"])
            self.groups[event["shard"]].flushes.append(flush)
        else:
            self.events.append(event)

    def settle(self) -> None:
        """Once all has been taken."""
        jobs = [e for e in self.events if e["kind"] == "job" and e["exit"] == 0]
        for group in self.groups.values():
            group.flushes += [(e["begin"], e["at"], inf) for e in jobs if e["name"] in FLUSHES]
            group.settle()
        self.merges = [(e["begin"], e["at"]) for e in jobs if e["name"] in MERGES]
        self.refreshes = [(e["begin"], e["at"]) for e in jobs if e["name"] in REFRESHES]
        self.changes = [(e["begin"], e["at"]) for e in self.events if e["kind"] == "columns"]
        self.restores = [(e["begin"], e["at"]) for e in self.events if e["kind"] == "restore"]

    # -- judging

    def judge(self) -> None:
        """Judge every read and every job, in the order in which they began."""
        shown: list[dict[str, int]] = [defaultdict(lambda: -1) for _ in LEVELS]
        ended: list[tuple[int, int, int, int, dict[str, int]]] = []
        restored = -1.0
        for event in sorted(self.events, key=lambda e: e.get("begin", e["at"])):
            if event["kind"] == "job":
                self._judge_exit(event)
                if event["name"] == "init" and event["exit"] == 0:
                    self.is_clone = False  # adopted: it is a table as any other
            if event["kind"] == "copy":
                self._judge_copy(event)
            if event["kind"] == "fault":
                self.find(event["what"], event, event["detail"])
            if event["kind"] != "read":
                continue
            self._judge_exit(event)
            if event["exit"] != 0:
                continue
            self.judged[event["by"]] += 1
            for op, incarnation, value in event.get("marks", ()):
                wanted = incarnation if incarnation in self.written.get(op, ()) else None
                if value != wanted:
                    detail = f"operation {op} has {value} in column {incarnation}, not {wanted}"
                    self.find("value of another column", event, detail)
            begin, end = event["moment"] or (event["begin"], event["at"])
            latest = max((e for b, e in self.restores if b < end), default=-1)
            if latest > restored:
                restored = latest
                shown[BASE].clear()
                shown[SNAPSHOT].clear()
            while ended and ended[0][0] < event["begin"]:
                _, _, level, read_begin, prefixes = heapq.heappop(ended)
                # What was shown before a restore binds those only that a restore doesn't change.
                for at_least in shown[level if read_begin > restored else max(level, LATEST) :]:
                    for group, prefix in prefixes.items():
                        at_least[group] = max(at_least[group], prefix)
            level = LEVELS[event["level"]]
            if event["moment"]:
                self._judge_moment(event)
                self._judge_rows(event, level, {}, begin, end, restored)
                continue
            prefixes = self._judge_rows(event, level, shown[level], begin, end, restored)
            heapq.heappush(ended, (event["at"], event["line"], level, event["begin"], prefixes))

    def _judge_exit(self, event: Event) -> None:
        what = f"{event.get('name') or event['by']}: exit {event['exit']}, {event['said'][-600:]}"
        if self.is_clone and event["exit"] in _REFUSED:
            return
        if event["exit"] == _CORRUPT:
            whose = "backup that is not whole" if event.get("by") == "backup" else ""
            self.find(whose or "sound table called corrupt", event, what)
        elif event.get("final") and event["exit"] != 0:
            self.find("not healed", event, what)
        elif event.get("name") in _GO_ON and event["exit"] in _REFUSED:
            self.find(f"{event['name']} that can't go on", event, what)
        elif self.start.get("columns") and event["exit"] in _REFUSED:
            # Rows of another schema wait from a change until who made it has followed the advice.
            waits = any(b < event["at"] and event["begin"] < e for b, e in self.changes)
            if not (waits and _COLUMNS.search(event["said"])):
                self.find("refused without a change of columns", event, what)
        elif "Traceback (most recent" in event["said"]:
            self.find("unexpected error", event, what)

    def _judge_copy(self, event: Event) -> None:
        """Who applies changes has the rows of the base, which the consumer read beside it."""
        self.judged["copy"] += 1
        if event["base"] is None:
            self.find("version gone that a cursor needs", event, f"version {event['version']}")
        elif sorted(event["rows"]) != sorted(event["base"]):
            more = [row for row in event["rows"] if row not in event["base"]]
            less = [row for row in event["base"] if row not in event["rows"]]
            self.find("copy unlike the base", event, f"more {more[:3]}, less {less[:3]}")

    def _judge_moment(self, event: Event) -> None:
        rows = json.dumps(sorted(event["rows"]))
        line, first = self.moments.setdefault(event["name"], (event["line"], rows))
        if rows != first:
            self.find("checkpoint changed", event, f"{event['name']} was another in line {line}")

    def _judge_rows(
        self, event: Event, level: int, shown: dict[str, int], begin: float, end: float,
        restored: float,
    ) -> dict[str, int]:  # fmt: skip
        """The least prefix of each shard that explains the rows."""
        seen = self._seen(event)
        prefixes: dict[str, int] = {}
        for name, group in self.groups.items():
            sure = group.acked.before(begin) if level == WAL else -1
            if level == LATEST:
                sure = group.flushed.before(begin)
            if level <= SNAPSHOT:
                merged = [b for b, e in self.merges if restored < b and e < begin]
                if level == SNAPSHOT:
                    merged += [b for b, e in self.refreshes if restored < b and e < begin]
                sure = group.flushed.before(max(merged, default=0))
            keys = (
                group.chains
                if event["keys"] is None
                else [key for key in event["keys"] if key in group.chains]
            )
            wanted = {
                key: group.intervals(key, seen.get(key))
                for key in keys
                if key in seen or not self._is_taken_ahead(group.chains[key], key, level, end)
            }
            limit = group.begun.before(end)
            floor = max(sure, shown.get(name, -1))
            prefix, key = _explain(wanted, floor, limit)
            if key is None:
                prefixes[name] = prefix
            else:
                self._find_unexplained(event, group, wanted, key, seen, sure, floor, limit)
        return prefixes

    def _is_taken_ahead(self, chain: Sequence[Op], key: int, level: int, end: float) -> bool:
        """Whether the base may lack a key that a merge is about to write, in its next commit.

        Merges that meet double keys take those, and what they delete, out of the base first.
        """
        later = (op for op in chain if op.session and op.begin < end)
        ahead = any(op.deletes or key in self.doubled for op in later)
        return bool(self.doubled) and level <= SNAPSHOT and ahead

    def _seen(self, event: Event) -> dict[int, int]:
        """The operation that each key shows. Rows that can't be right are findings."""
        seen: dict[int, int] = {}
        for key, op, *folded in event["rows"]:
            if op not in self.ops or key not in self.ops[op].keys:
                self.find("row that nobody wrote", event, f"key {key} shows operation {op}")
            elif key in self.doubled and op == seen.get(key) == 0:
                pass  # both copies, as long as nobody has written the key
            elif key in seen:
                self.find("row twice", event, f"key {key} shows operations {seen[key]} and {op}")
            else:
                seen[key] = op
                if folded:
                    self._judge_folded(event, key, op, *folded)
        return seen

    def _judge_folded(self, event: Event, key: int, op: int, total: int, log: list[int]) -> None:
        chain = next(g.chains[key] for g in self.groups.values() if key in g.chains)
        places = {o.id: place for place, o in enumerate(chain) if not o.deletes}
        counted = [places[o] for o in log if o in places]
        why = ""
        if len(counted) != len(log) or not log or log[-1] != op:
            why = "has operands of nobody, or not its last"
        elif len(set(log)) != len(log):
            why = "counts operands twice"
        elif counted != sorted(counted):
            why = "folds in another order"
        elif total != sum(map(operand, log)):
            why = f"has the sum {total} instead of {sum(map(operand, log))}"
        else:
            since = max((p for p, o in enumerate(chain[: counted[0]]) if o.deletes), default=-1)
            between = [o for o in chain[since + 1 : counted[-1]] if o.acked < inf]
            if any(o.deletes or o.id not in log for o in between):
                why = "leaves out operands or deletes"
        if why:
            self.find("folded wrongly", event, f"key {key} {why}: {log}, total {total}")

    def _find_unexplained(
        self, event: Event, group: Chain, wanted: dict[int, list[Interval]], key: int,
        seen: dict[int, int], sure: int, floor: int, limit: int,
    ) -> None:  # fmt: skip
        prefix, other = _explain(wanted, -1, limit)
        chain = [(o.id, "delete" if o.deletes else "put", o.position) for o in group.chains[key]]
        shows = f"key {key} shows {seen.get(key, 'nothing')}, of (id, what, position) {chain[-6:]}"
        if other is not None:
            self.find("a state that never was", event, f"{shows}; so does no prefix")
        elif floor <= sure:
            late = sum(not any(hi > sure for _, hi in w) for w in wanted.values())
            text = f"{shows}; promised up to {sure}, explained by {prefix}; {late} keys"
            self.find("acknowledged rows lost", event, text)
        else:
            text = f"{shows}; had shown {floor}, now explained by {prefix}, promised {sure}"
            self.find("went backwards", event, text)

    def find(self, what: str, event: Event, detail: str) -> None:
        name = event.get("by") or event.get("name")
        self.findings.append(Finding(what, self.name, event["line"], f"{name}: {detail}"))


def _explain(
    wanted: dict[int, list[Interval]], floor: float, limit: float
) -> tuple[int, int | None]:
    """The least prefix from `floor` on that has all intervals, or the key that none of them has."""
    prefix = floor
    moved = True
    while moved:
        moved = False
        for key, intervals in wanted.items():
            low = next((low for low, high in intervals if high > prefix), inf)
            if low > limit:
                return -1, key
            if low > prefix:
                prefix, moved = low, True
    return int(prefix), None


@dataclass
class Verdict:
    """What was judged, and what was found."""

    findings: list[Finding]
    judged: dict[str, int]
    acked: int
    did: dict[str, int]
    """How often each actor did something: operations that writers began, jobs that ended well."""

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def judge(folder: Path) -> Verdict:
    """Judge the history of a folder."""
    events: dict[str, list[Event]] = {}
    acks: dict[int, float] = {}
    did: Counter[str] = Counter()
    for event in load(folder):
        if event["kind"] == "op":
            did[f"writes of {event.get('by', 'pylance')}"] += 1
        elif event["kind"] == "upkeep" or (event["kind"] == "job" and event["exit"] == 0):
            did[event["name"]] += 1
        elif event["kind"] == "drill":
            did[f"damage: {event['verdict']}"] += 1
        if event["kind"] == "ack":
            acks[event["id"]] = event["at"]
        elif event["kind"] not in ("stop", "drill"):
            events.setdefault(event["table"], []).append(event)
    judged: Counter[str] = Counter()
    tables = [Table(made) for made, *_ in events.values()]
    for table, (_, *found) in zip(tables, events.values(), strict=True):
        for event in found:
            table.take(event)
        for op in table.ops.values():
            op.acked = acks.get(op.id, op.acked)
        table.settle()
        table.judge()
        judged += table.judged
    return Verdict(
        findings=[finding for table in tables for finding in table.findings],
        judged=dict(judged),
        acked=len(acks),
        did=dict(did),
    )


def show(verdict: Verdict, findings_max: int = 20) -> None:
    kinds = Counter(finding.what for finding in verdict.findings)
    print(
        f"   {verdict.acked} acknowledged operations; done {verdict.did}; "
        f"reads judged {verdict.judged}; findings {dict(kinds) or 'none'}"
    )
    shown: Counter[str] = Counter()
    for found in verdict.findings:
        shown[found.what] += 1
        if shown[found.what] <= 3 and sum(shown.values()) <= findings_max:
            print(f"- {found.what}, {found.table}, line {found.line}: {found.detail}")


if __name__ == "__main__":
    verdict = judge(Path(sys.argv[1]))
    show(verdict)
    sys.exit(bool(verdict.findings))
