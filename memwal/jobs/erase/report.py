"""What `memwal erase` reports, and how it is displayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import EXIT_PARTIAL, MemWalError
from memwal.format import layout
from memwal.grid import Column, build_table, numbers, words
from memwal.jobs.erase.apply import Erased
from memwal.jobs.erase.plan import Finding, Holders, State
from memwal.model import Erasure, ShardId
from memwal.report import DONE, NOTHING_TO_DO, PARTIAL, AuditItem, JobOnTable, Section, TableReport
from memwal.text import count_of, iso_time

_SHOWN_MAX = 20
_WAITING = (State.HELD, State.UNKNOWN)


class HoldersReport(Section):
    """How much held the keys when the run began. `rows` are stored rows of the base, hidden too."""

    rows: int = 0
    data_files: int = 0
    fragments: int = 0
    versions: int = 0
    indexes: int = 0
    generations: int = 0
    wal_entries: int = 0
    others: int = 0
    tags: int = 0
    checkpoints: int = 0


class ObjectReport(Section):
    """One object of the proof. `state` is absent, held, written_again, unknown or not_looked_at.

    `until` is the earliest time at which a further run can take it away, where that is known.
    """

    path: str
    kind: str
    state: str
    why: str
    bytes: int = 0
    until: str | None = None


class ErasureReport(Section):
    """An erasure as it is recorded. `left` counts objects that held a key at the last look."""

    erasure_id: str
    state: str
    keys: int
    began_at: str
    ended_at: str | None = None
    looked_at: str | None = None
    left: int | None = None
    until: str | None = None
    holder: str = ""


class EraseTableReport(TableReport):
    """One table of `erase`. `found` is what held the keys; `objects` is the proof.

    `erasure` is null for a dry run, and where nothing had to be done. `claimed` are the shards that
    were claimed, or would be; `dropped` are the tags, checkpoints and run records that went.
    `not_looked_at` names what may hold the keys elsewhere. `erasures` are those that `erase list`
    shows, or that `erase resume` went on with: there `jobs` has the report of each.
    """

    erasure: ErasureReport | None = None
    keys: int = 0
    found: HoldersReport | None = None
    claimed: tuple[str, ...] = ()
    dropped: tuple[AuditItem, ...] = ()
    jobs: tuple[JobOnTable, ...] = ()
    states: dict[str, int] = {}
    objects: tuple[ObjectReport, ...] = ()
    not_looked_at: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    erasures: tuple[ErasureReport, ...] = ()

    def audited(self) -> Iterable[AuditItem]:
        """The shards that were claimed, and what was dropped; the jobs say what they did."""
        for item in self.dropped:
            yield item.model_copy(update={"done": True})
        for shard in self.claimed if self.erasure is not None else ():
            path = layout.shard_folder(ShardId(shard))
            yield AuditItem(action="claim", kind="shard", path=path, shard_id=shard, done=True)


def describe_erasure(record: Erasure) -> ErasureReport:
    """The report of a record."""
    names = ErasureReport.model_fields
    return ErasureReport(**{name: getattr(record, name) for name in names})


def report_erase(table: str, erased: Erased, *, keys: int, version: int) -> EraseTableReport:
    """One table's report of a run, or of a dry run."""
    record, error = erased.record, erased.stopped
    outcome = DONE if record is not None or erased.holders.any else NOTHING_TO_DO
    if error is not None:
        outcome = PARTIAL if record is not None and record.marks else error.outcome
    return EraseTableReport(
        table=table,
        outcome=outcome,
        exit_code=0 if error is None else error.exit_code,
        error=None if error is None else str(error),
        cause=error,
        version_before=version,
        version_after=erased.version_after or version,
        erasure=None if record is None else describe_erasure(record),
        keys=keys,
        found=_report_holders(erased.holders),
        claimed=tuple(map(str, erased.claimed)),
        dropped=tuple(erased.dropped),
        jobs=tuple(erased.jobs),
        states=count_states(erased.findings),
        objects=tuple(map(report_finding, erased.findings)),
        not_looked_at=tuple(erased.elsewhere),
        warnings=tuple(erased.warnings),
    )


def report_proof(
    table: str,
    record: Erasure,
    findings: Sequence[Finding],
    elsewhere: Sequence[str],
    *,
    version: int,
    keys: int,
    error: MemWalError | None = None,
) -> EraseTableReport:
    """One table's report of `erase verify`: exit code 6 while anything holds a key."""
    left = sum(f.state in _WAITING for f in findings)
    text = f"{count_of(left, 'object')} may hold an erased key (objects)" if left else None
    return EraseTableReport(
        table=table,
        outcome=PARTIAL if left else DONE,
        exit_code=EXIT_PARTIAL if left else 0,
        error=text if error is None else str(error),
        version_before=version,
        version_after=version,
        erasure=describe_erasure(record),
        keys=keys,
        states=count_states(findings),
        objects=tuple(map(report_finding, findings)),
        not_looked_at=tuple(elsewhere),
    )


def count_states(findings: Sequence[Finding]) -> dict[str, int]:
    """How many objects are in each state."""
    return dict(Counter(found.state.value for found in findings))


def report_finding(found: Finding) -> ObjectReport:
    """One object of the proof."""
    return ObjectReport(
        path=found.path,
        kind=found.kind.value,
        state=found.state.value,
        why=found.why,
        bytes=found.size_bytes,
        until=iso_time(found.until_nanos),
    )


def _report_holders(holders: Holders) -> HoldersReport:
    return HoldersReport(**asdict(holders))


ERASURES: tuple[Column[ErasureReport], ...] = (
    words("erasure", lambda e: e.erasure_id),
    words("state", lambda e: e.state),
    numbers("keys", lambda e: e.keys),
    words("began", lambda e: e.began_at),
    numbers("left", lambda e: "-" if e.left is None else e.left),
    words("until", lambda e: e.until or "-"),
)


def show_table(report: EraseTableReport) -> list[RenderableType]:
    """Render what held the keys, what is left and until when, and what was not looked at."""
    warnings = [Text(f"  warning: {text}", style="yellow") for text in report.warnings]
    if report.erasures:
        return [build_table(report.erasures, ERASURES), *warnings]
    parts: list[RenderableType] = []
    if report.found is not None:
        parts.append(Text(f"  {count_of(report.keys, 'key')} in {_list_holders(report.found)}"))
    if report.claimed:
        claimed = "claimed" if report.erasure is not None else "to be claimed"
        parts.append(Text(f"  {count_of(len(report.claimed), 'shard')} {claimed}"))
    parts += [Text(f"  {job.job:<14} {job.report.outcome}", style="dim") for job in report.jobs]
    if report.erasure is not None:
        parts.append(_show_state(report))
    parts += _show_waiting(report)
    again = [o for o in report.objects if o.state == "written_again"]
    if again:
        text = f"  {count_of(len(again), 'object')} with a key that was written again: not erased"
        parts.append(Text(text, style="yellow"))
    parts += [Text(f"  not looked at: {name}", style="dim") for name in report.not_looked_at]
    return parts + warnings


def _show_waiting(report: EraseTableReport) -> list[RenderableType]:
    """A line for each thing that is left; the files of a generation or an index are one."""
    lines: dict[tuple[str, str], int] = {}
    for found in report.objects:
        if found.state in ("held", "unknown"):
            parts = found.path.split("/")
            depth = {"index": 2, "generation": 3}.get(found.kind, len(parts))
            path = "/".join(parts[:depth])
            until = f", until {found.until} at least" if found.until else ""
            why = found.why.partition("; ")[2] or found.why
            line = (path, f"{why}{until}")
            lines[line] = lines.get(line, 0) + 1
    shown: list[RenderableType] = [
        Text(f"    {path}{f' ({n} files)' if n > 1 else ''}: {why}", style="yellow")
        for (path, why), n in list(lines.items())[:_SHOWN_MAX]
    ]
    if len(lines) > _SHOWN_MAX:
        shown.append(Text(f"    and {len(lines) - _SHOWN_MAX} more (--json has all)"))
    return shown


def _show_state(report: EraseTableReport) -> Text:
    erasure = report.erasure
    if erasure is None:
        return Text("")
    states = ", ".join(f"{count} {name}" for name, count in sorted(report.states.items()))
    style = "green" if erasure.state == "done" else "yellow"
    return Text(f"  erasure {erasure.erasure_id} is {erasure.state}: {states}", style=style)


def _list_holders(found: HoldersReport) -> str:
    words_of = {name.replace("_", " "): count for name, count in found.model_dump().items()}
    one = {"indexes": "index", "wal entries": "wal entry"}
    told = [
        f"{count:,} {one.get(name, name.removesuffix('s')) if count == 1 else name}"
        for name, count in words_of.items()
        if count
    ]
    return ", ".join(told) or "nothing"
