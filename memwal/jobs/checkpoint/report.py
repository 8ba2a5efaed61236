"""What `memwal checkpoint` reports."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from memwal.format import layout
from memwal.grid import CHECKPOINTS, build_table
from memwal.report import AuditItem, CheckpointReport, TableReport


class CheckpointTableReport(TableReport):
    """One table of `checkpoint`: those that were made, found or dropped, or would be."""

    checkpoints: tuple[CheckpointReport, ...] = ()
    warnings: tuple[str, ...] = ()

    def audited(self) -> Iterable[AuditItem]:
        """The checkpoints that were dropped."""
        for found in self.checkpoints:
            if found.state == "dropped":
                yield drop_item(found.tag, found.version, done=True)


def drop_item(tag: str, version: int, *, done: bool | None = None) -> AuditItem:
    """The drop of a checkpoint, as a line of the audit trail."""
    return AuditItem(
        action="drop",
        kind="checkpoint",
        path=layout.tag_path(tag),
        version=version,
        reason="asked for",
        done=done,
    )


def show_table(report: CheckpointTableReport) -> list[RenderableType]:
    """Render a line for each checkpoint."""
    if not report.checkpoints:
        return [Text("  no checkpoints", style="dim")]
    return [build_table(report.checkpoints, CHECKPOINTS)]
