"""A repair's part of the document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import Corruption, MemWalError
from memwal.format import layout
from memwal.jobs.repair.model import Damage
from memwal.jobs.repair.plan import was_looked_for
from memwal.report import DONE, NOTHING_TO_DO, AuditItem, TableReport, describe_error
from memwal.text import count_of

if TYPE_CHECKING:
    from memwal.jobs.repair.apply import TableRepair

_NAMED_MAX = 5


class RepairTableReport(TableReport):
    """One table of a repair. `mended` counts what this run mended, `left` what is still damaged.

    `lost` is what no mending brings back, as far as that can be said. `quarantine` is the folder
    with what was replaced. `warnings` name checks that were not made.
    """

    items: tuple[Damage, ...] = ()
    mended: int = 0
    left: int = 0
    lost: tuple[str, ...] = ()
    quarantine: str | None = None
    warnings: tuple[str, ...] = ()

    SUMMARISED = ("mended", "left")

    def audited(self) -> Iterable[AuditItem]:
        """What was mended, or was to be."""
        tried = (item for item in self.items if item.done or item.error is not None)
        return (audit_item(item, done=item.done) for item in tried)


def audit_item(found: Damage, *, done: bool | None = None) -> AuditItem:
    """A damage as a line of the audit trail. What is lost may name keys, and stays out of it."""
    return AuditItem(
        action="replace",
        kind=found.kind,
        path=found.path,
        shard_id=found.shard_id,
        reason=found.evidence,
        done=done,
    )


def report_repair(
    name: str, repair: TableRepair, versions: tuple[int, int], run_id: str, *, acted: bool
) -> RepairTableReport:
    """One table: what was found, what was done, and what is left."""
    left = {damage.name for damage in repair.last}
    errors = {damage.name: error for damage, error in repair.mended if error is not None}
    every = (*repair.first, *(damage for damage, _ in repair.mended), *repair.last)
    known = {damage.name: damage for damage in every}
    items = tuple(
        _report(
            damage,
            repair.uri,
            done=acted and key not in left and was_looked_for(damage, repair.checks),
            error=errors.get(key),
        )
        for key, damage in known.items()
    )
    error, folder = _judge(items, acted=acted), f"{layout.QUARANTINE}/{layout.name_run(run_id)}"
    mended = sum(item.done for item in items)
    return RepairTableReport(
        table=name,
        **describe_error(error, DONE if items else NOTHING_TO_DO),
        version_before=versions[0],
        version_after=versions[1],
        items=items,
        mended=mended,
        left=len(items) - mended,
        lost=tuple(dict.fromkeys(text for item in items for text in item.lost)),
        quarantine=folder if repair.has_quarantined else None,
        warnings=tuple(f"not checked: {c.name}: {c.detail}" for c in repair.checks if c.ok is None),
    )


def _judge(items: Sequence[Damage], *, acted: bool) -> MemWalError | None:
    """The error of a table that is damaged still."""
    left = [item for item in items if not item.done]
    if not left:
        return None
    mendable = [item for item in left if item.action == "mend"]
    what = f"{count_of(len(left), 'thing')} damaged"
    if not acted and mendable:
        what += f", {len(mendable)} of them can be mended (--execute)"
    return Corruption("MW-J02", f"{what}: {'; '.join(map(_tell, left[:_NAMED_MAX]))}")


def _tell(item: Damage) -> str:
    shard = "" if item.shard_id is None else f"shard {item.shard_id}: "
    where = "" if item.shard_id is not None or item.path in item.finding else f"{item.path}: "
    return f"{shard}{where}{item.finding}"


def _report(damage: Damage, uri: str, *, done: bool, error: MemWalError | None) -> Damage:
    # Without the table and the shard's folder, which are named beside it.
    finding = damage.finding.replace(f"{uri}: ", "").replace(f"{uri}/", "")
    if (shard := damage.shard_id) is not None:
        finding = finding.replace(f"shard {shard}: ", "")
        finding = finding.replace(f"{layout.shard_folder(shard)}/", "")
    told: dict[str, Any] = {"finding": finding, "done": done}
    if done and not damage.effects:
        told |= {"evidence": "what else was mended brought it back", "lost": ()}
    elif error is not None and not done:
        told["error"] = str(error)
    return damage.model_copy(update=told)


def show_table(report: RepairTableReport) -> list[RenderableType]:
    """Render each damage on lines of its own, as sentences do not fit into cells."""
    if not report.items:
        return [Text("  nothing is damaged", style="dim")]
    parts: list[RenderableType] = []
    for item in report.items:
        word = f"{item.action}{' (done)' if item.done else ''}"
        style = "green" if item.action == "mend" else "red"
        parts.append(Text.assemble("  ", (f"{word:<8}", style), f" {item.path}"))
        parts.append(Text(f"    {item.kind}: {item.finding}"))
        parts.append(Text(f"    {'how' if item.action == 'mend' else 'do'}: {item.evidence}"))
        if item.fences and not item.done:
            parts.append(Text("    fences the shard's writer"))
        parts += [Text(f"    lost: {text}", style="red") for text in item.lost]
        if item.error is not None:
            parts.append(Text(f"    failed: {item.error}", style="red"))
    parts.append(Text(f"  mended {report.mended}, still damaged {report.left}"))
    if report.quarantine is not None:
        parts.append(Text(f"  what was replaced is in {report.quarantine}"))
    return parts
