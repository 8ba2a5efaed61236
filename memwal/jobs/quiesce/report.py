"""What `memwal quiesce` reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import EXIT_HELD, EXIT_PARTIAL, EXIT_REFUSED, Refused
from memwal.format import layout
from memwal.jobs.garbage.report import GarbageTableReport
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.maintain.report import show_table as show_jobs
from memwal.jobs.quiesce.plan import Obstacle
from memwal.jobs.rescue.plan import RescueTableReport
from memwal.report import (
    DONE,
    HELD,
    NOTHING_TO_DO,
    REFUSED,
    AuditItem,
    JobOnTable,
    Part,
    sum_up,
)
from memwal.run.reports import sum_up_jobs
from memwal.text import name_some

_NAMED_MAX = 3

_SHOWN_MAX = 20


class QuiesceTableReport(MaintainTableReport):
    """One table. `safe`: nothing is `in_the_way` of another write spec, when it was last looked at.

    Of a dry run both say how the table stands now, and the jobs what they would do.
    """

    safe: bool = False
    in_the_way: tuple[Obstacle, ...] = ()
    warnings: tuple[str, ...] = ()

    def audited(self) -> Iterable[AuditItem]:
        """The judgement: what was in the way of another write spec."""
        kinds = sorted({f"{o.kind} {o.shard_id or o.index or ''}".strip() for o in self.in_the_way})
        yield AuditItem(
            action="quiesce",
            kind="table",
            path=layout.MEM_WAL,
            version=self.version_after,
            reason="nothing is in the way" if self.safe else ", ".join(kinds),
            done=self.safe,
        )


def report_quiesce(
    table: str, jobs: Sequence[JobOnTable], obstacles: Sequence[Obstacle], *, dry_run: bool
) -> QuiesceTableReport:
    """What the jobs came to, and what is left; a dry run fails only for what no run would move."""
    found = sum_up_jobs(jobs)
    left = [obstacle for obstacle in obstacles if obstacle.stays or not dry_run]
    if left:
        # Where a job failed otherwise than by a refusal, that is the reason.
        known = (DONE, NOTHING_TO_DO)
        wrong: list[Part] = [j.report for j in jobs if j.report.outcome not in known]
        parts = [p for p in wrong if p.exit_code not in (EXIT_REFUSED, EXIT_PARTIAL)]
        refused = [
            Part(outcome=HELD if o.exit_code == EXIT_HELD else REFUSED, exit_code=o.exit_code)
            for o in left
        ]
        texts = name_some([o.detail for o in left], _NAMED_MAX, "reasons (in_the_way)")
        found["outcome"], found["exit_code"] = sum_up(parts or refused)
        errors = [f"{j.job}: {j.report.error}" for j in jobs if j.report in parts]
        text = f"not safe to change the write spec: {'; '.join((*errors, *texts))}"
        refused_here = found["exit_code"] == EXIT_REFUSED
        found["error"] = str(Refused("MW-V03", text)) if refused_here else text
    return QuiesceTableReport(
        table=table,
        safe=not obstacles,
        in_the_way=tuple(obstacles),
        **found,
    )


def find_claimed(jobs: Sequence[JobOnTable]) -> dict[str, int | None]:
    """The epochs that this run took, by shard."""
    return {
        shard.shard_id: shard.writer_epoch_after
        for job in jobs
        if isinstance(job.report, RescueTableReport)
        for shard in job.report.shards
    }


def find_kept(jobs: Sequence[JobOnTable]) -> dict[str, str]:
    """Why garbage kept what it kept, by path."""
    return {
        item.path: item.reason
        for job in jobs
        if isinstance(job.report, GarbageTableReport)
        for item in job.report.items
        if item.action == "keep"
    }


def show_table(report: QuiesceTableReport) -> list[RenderableType]:
    """Render a line for each job, and whether the write spec may be changed.

    Obstacles that stay are in the report's error instead.
    """
    parts = show_jobs(report)
    if report.safe:
        return [*parts, Text("  safe to change the write spec", style="green")]
    if report.error is None:
        lines = name_some([o.detail for o in report.in_the_way], _SHOWN_MAX, "reasons")
        parts.append(Text("  not safe to change the write spec:", style="yellow"))
        parts += [Text(f"    {line}") for line in lines]
    if any(o.kind == "listed" and o.stays for o in report.in_the_way):
        parts.append(
            Text(
                "  a generation is dropped once every retained version has it merged; a tag or "
                "checkpoint keeps its own. --retention 1d expires versions that are older; within "
                "a day of the merge, with writers stopped, --retention 0s --allow-short-retention",
                style="dim",
            )
        )
    return parts
