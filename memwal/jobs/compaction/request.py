"""What one may ask of a compaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class CompactionRequest:
    """Which fragments to rewrite, and how many at most."""

    target_rows_per_fragment: Annotated[int | None, Option(setting="target_rows_per_fragment")] = (
        None
    )
    tasks_max: Annotated[int | None, Option(setting="compaction_tasks_max")] = None
    materialize_deletions_threshold: Annotated[
        float | None, Option(setting="materialize_deletions_threshold", metavar="FRACTION")
    ] = None
