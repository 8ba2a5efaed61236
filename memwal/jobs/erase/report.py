"""What `memwal erase` reports, and how it is displayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from memwal.format import layout
from memwal.grid import Column, build_table, numbers, words
from memwal.jobs.erase.plan import Finding
from memwal.model import Erasure, ShardId
from memwal.report import AuditItem, JobOnTable, TableReport
from memwal.text import count_of, name_some

_SHOWN_MAX = 20


class EraseTableReport(TableReport):
    """One table of `erase`. `objects` is the proof: every object below the table.

    Of a dry run it is what holds the keys. `found` counts what held them when the run began, or may
    have, by kind, and `rows` the stored rows of the base, hidden ones included. `erasure` is the
    record, null for a dry run and where nothing had to be done; its `left` counts objects that held
    a key at the last look. `claimed` are the shards that were claimed, or would be; `dropped` are
    the tags, checkpoints and run records that went. `not_looked_at` names what may hold the keys
    elsewhere. `erasures` are those that `erase list` shows, or that `erase resume` went on with:
    there `jobs` has the report of each.
    """

    erasure: Erasure | None = None
    keys: int = 0
    rows: int = 0
    found: dict[str, int] = {}
    claimed: tuple[str, ...] = ()
    dropped: tuple[AuditItem, ...] = ()
    jobs: tuple[JobOnTable, ...] = ()
    objects: tuple[Finding, ...] = ()
    not_looked_at: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    erasures: tuple[Erasure, ...] = ()

    @property
    def states(self) -> dict[str, int]:
        """How many objects are in each state."""
        return dict(Counter(found.state.value for found in self.objects))

    def audited(self) -> Iterable[AuditItem]:
        """The shards that were claimed, and what was dropped; the jobs say what they did."""
        for item in self.dropped:
            yield item.model_copy(update={"done": True})
        for shard in self.claimed if self.erasure is not None else ():
            path = layout.shard_folder(ShardId(shard))
            yield AuditItem(action="claim", kind="shard", path=path, shard_id=shard, done=True)
        for job in self.jobs:
            if isinstance(job.report, EraseTableReport):
                yield from job.report.audited()


ERASURES: tuple[Column[Erasure], ...] = (
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
    found = ", ".join(f"{kind}: {count:,}" for kind, count in sorted(report.found.items()))
    rows = count_of(report.rows, "row") if report.rows else "no row"
    there = f"{rows} of the base{f'; found, or not ruled out, in {found}' if found else ''}"
    parts: list[RenderableType] = [Text(f"  {count_of(report.keys, 'key')} in {there}")]
    if report.claimed:
        claimed = "claimed" if report.erasure is not None else "to be claimed"
        parts.append(Text(f"  {count_of(len(report.claimed), 'shard')} {claimed}"))
    parts += [Text(f"  {job.job:<14} {job.report.outcome}", style="dim") for job in report.jobs]
    if (erasure := report.erasure) is not None:
        states = ", ".join(f"{count} {name}" for name, count in sorted(report.states.items()))
        style = "green" if erasure.state == "done" else "yellow"
        text = f"  erasure {erasure.erasure_id} is {erasure.state}: {states}"
        parts.append(Text(text, style=style))
    parts += _show_left(report)
    if again := report.states.get("written_again"):
        text = f"  {count_of(again, 'object')} with a key that was written again: not erased"
        parts.append(Text(text, style="yellow"))
    parts += [Text(f"  not looked at: {name}", style="dim") for name in report.not_looked_at]
    return parts + warnings


def _show_left(report: EraseTableReport) -> list[RenderableType]:
    """A line for each object that is left."""
    lines = [
        f"    {found.path}: {found.why}{f', until {found.until} at least' if found.until else ''}"
        for found in report.objects
        if found.state in ("held", "unknown")
    ]
    return [Text(line, style="yellow") for line in name_some(lines, _SHOWN_MAX, "objects")]
