"""Whether a compaction is worth it: what `status` and `maintain` advise, and `auto` goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.indexes import SmallFragments
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
        found = tables.small_fragments(
            version,
            target_rows=limits.target_rows_per_fragment,
            deleted_share=limits.materialize_deletions_threshold,
        )
    except MemWalError:
        return None
    return judge(found, limits)


def judge(found: SmallFragments, limits: AdviceLimits) -> CompactionAdvice:
    """Advise compaction when there are many small fragments, or many deleted rows.

    Deleted rows are many when their share of the table reaches `materialize_deletions_threshold`.
    The table counts as at least one full fragment, so a small table whose rows were all replaced
    is no reason to compact.
    """
    reasons = []
    if found.fragments >= limits.compaction_fragments_min:
        reasons.append(f"{found.fragments:,} small fragments")
    all_rows = max(found.physical_rows, limits.target_rows_per_fragment)
    if found.deleted_rows >= max(1, limits.materialize_deletions_threshold * all_rows):
        reasons.append(f"{found.deleted_rows:,} deleted rows")
    return CompactionAdvice(
        small_fragments=found.fragments,
        deleted_rows=found.deleted_rows,
        reason=", ".join(reasons) or None,
    )
