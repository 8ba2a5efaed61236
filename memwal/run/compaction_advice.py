"""Whether a compaction is worth it: what `status` and `maintain` advise, and `auto` goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.report import CompactionAdvice
from memwal.run.options import choose_limits

if TYPE_CHECKING:
    from memwal.store.tables.datasets import LanceTables


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviceLimits:
    """From how many small fragments compaction is advised, and what compaction calls small."""

    compaction_fragments_min: int = 32
    target_rows_per_fragment: int = 1024 * 1024
    materialize_deletions_threshold: float = 0.1


def find_compaction_advice(
    tables: LanceTables, version: int, resolved: ResolvedTable
) -> CompactionAdvice | None:
    """The advice from Lance's own compaction plan; None when that plan can't be had.

    The version was just read, so this makes no request.
    """
    limits = choose_limits(AdviceLimits, resolved)
    try:
        planned = tables.plan_compaction(
            version,
            target_rows=limits.target_rows_per_fragment,
            deleted_share=limits.materialize_deletions_threshold,
        )
        known = {f.fragment_id: f for f in tables.fragments(version)}
    except MemWalError:
        return None
    return judge(
        # A single one is rewritten for its deleted rows.
        small_fragments=sum(len(ids) for ids, _ in planned if len(ids) > 1),
        deleted_rows=sum(known[i].deleted_rows for ids, _ in planned for i in ids),
        all_rows=sum(f.rows + f.deleted_rows for f in known.values()),
        limits=limits,
    )


def judge(
    *, small_fragments: int, deleted_rows: int, all_rows: int, limits: AdviceLimits
) -> CompactionAdvice:
    """Advise compaction when there are many small fragments, or many deleted rows.

    Deleted rows are many when their share of the table reaches `materialize_deletions_threshold`.
    The table counts as at least one full fragment, so a small table whose rows were all replaced
    is no reason to compact.
    """
    reasons = []
    if small_fragments >= limits.compaction_fragments_min:
        reasons.append(f"{small_fragments:,} small fragments")
    table_rows = max(all_rows, limits.target_rows_per_fragment)
    if deleted_rows >= max(1, limits.materialize_deletions_threshold * table_rows):
        reasons.append(f"{deleted_rows:,} deleted rows")
    return CompactionAdvice(
        small_fragments=small_fragments,
        deleted_rows=deleted_rows,
        reason=", ".join(reasons) or None,
    )
