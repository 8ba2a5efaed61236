"""The IndexTable port over Lance: builds and commits that extend the base table's indexes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memwal.errors import Refused
from memwal.jobs.index_catchup.apply import BuiltSegment, SegmentTask
from memwal.jobs.index_catchup.plan import PQ_TRAINING_ROWS_MIN
from memwal.run.units import TableUnit, UnitResult, run_unit
from memwal.store.tables.indexes import LanceIndexes, find_index, index_kind, read_text_index
from memwal.store.tables.lance_calls import call_lance


class LanceIndexTable(LanceIndexes):
    """The IndexTable port over Lance."""

    def record(self, name: str) -> None:
        """An optimise call that has nothing to index (see the port)."""
        self._optimise([name], num_indices_to_merge=0)

    def append(self, names: Sequence[str], segments_to_merge: int | None) -> None:
        """Lance's incremental optimise (see the port)."""
        self._optimise(names, num_indices_to_merge=segments_to_merge)

    def retrain(self, name: str, segments_to_merge: int | None) -> None:
        """Retrain, or merge segments (see the port)."""
        dataset = self._tables.base()
        described = find_index(dataset, name)
        kind = index_kind(described)
        if not kind.startswith("IVF_"):
            self._optimise([name], num_indices_to_merge=segments_to_merge)
            return
        if "PQ" in kind:
            _check_training_rows(dataset, described)
        call_lance(lambda: dataset.optimize.optimize_indices(index_names=[name], retrain=True))

    def build(self, task: SegmentTask) -> BuiltSegment:
        """Write one uncommitted segment; if it is never committed, Lance's cleanup removes it."""
        dataset = self._tables.at(task.version)
        described = find_index(dataset, task.index)
        kind = index_kind(described)
        segment = call_lance(
            lambda: dataset.create_index_uncommitted(
                described.field_names[0],
                kind,
                name=task.index,
                replace=True,
                fragment_ids=[f.fragment_id for f in task.fragments],
                **(_text_settings(dataset, described) if kind == "INVERTED" else {}),
            )
        )
        return BuiltSegment(index=task.index, data=pickle.dumps(segment))

    def commit_segments(self, version: int, name: str, segments: Sequence[BuiltSegment]) -> None:
        """Commit from a handle on the version that was indexed (see the port).

        A fresh handle would even accept a segment whose fragments were compacted away meanwhile.
        """
        dataset = self._tables.at(version)
        column = find_index(dataset, name).field_names[0]
        built = [pickle.loads(s.data) for s in segments]
        call_lance(lambda: dataset.commit_existing_index_segments(name, column, built))

    def _optimise(self, names: Sequence[str], **options: Any) -> None:
        # On the latest version, since a commit records the progress that its handle has seen.
        dataset = self._tables.base()
        for name in names:
            find_index(dataset, name)  # raises; Lance silently ignores an unknown name
        call_lance(lambda: dataset.optimize.optimize_indices(index_names=list(names), **options))


def _text_settings(dataset: Any, described: Any) -> dict[str, Any]:
    """A full-text index's settings, as Lance takes them; None is a valid setting, too."""
    settings, _ = call_lance(lambda: read_text_index(dataset, described))
    settings.pop("lance_tokenizer")  # by the column's type
    version = max(segment.index_version for segment in described.segments)
    return {**settings, "format_version": version or None}


def _check_training_rows(dataset: Any, described: Any) -> None:
    """Raise Refused if there are so few vectors that Lance's retrain would cover nothing."""
    column = described.field_names[0]
    rows = call_lance(lambda: dataset.count_rows(filter=f"{_quote(column)} IS NOT NULL"))
    if rows < PQ_TRAINING_ROWS_MIN:
        raise Refused(
            "MW-X03",
            f"index {described.name!r}: retraining takes at least {PQ_TRAINING_ROWS_MIN} vectors, "
            f"the table has {rows}; with fewer, Lance leaves an index that covers nothing",
        )


def _quote(column: str) -> str:
    return column if "`" in column else ".".join(f"`{part}`" for part in column.split("."))


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentUnit(TableUnit):
    """Build one segment of an index. Commits nothing, so it needs no lease."""

    task: SegmentTask


def run_segment_unit(unit: SegmentUnit) -> UnitResult[BuiltSegment]:
    """Build one segment in this process. Never raises: other indexes must go on."""
    return run_unit(unit, lambda stores: LanceIndexTable(stores.tables).build(unit.task))
