"""Chooses how each index of a base table catches up with what merging added. Pure.

Lance credits an index with merge progress when its segments cover every fragment of the version
that a commit is based on. So the plan looks at coverage first and at the recorded progress second.
An entry that is missing or old says nothing about coverage (compaction, and a delete or merge that
empties a whole segment, erase entries: seen on 14.0.2), and a recorded one may claim more than is
covered (compaction keeps the entry of an index that it can't remap).

What Lance 14.0.2 does, and what follows from it
------------------------------------------------
- An optimise call that has nothing to index commits metadata only, and records progress for EVERY
  index with full coverage. When all are current it commits nothing.
- Its `retrain` retrains vector indexes only. A scalar index merely gets its last segment merged, or
  nothing at all; it is rebuilt here by segments over all fragments, which replace the old ones.
- Its `retrain` of a PQ index with fewer rows than a codebook has centroids leaves an index that
  covers NOTHING, without an error. Such an index is never retrained here.
- Its `retrain` keeps metric and quantisation, but chooses the number of partitions anew.
- It splits a partition that has grown to four times its target, and joins small ones, where it is
  not told how many segments to merge; told, it leaves partitions as they are, however large.
- It can't find a nested column ("No column with name"), while segments on one work.
- Segments of a vector index would each train a model of their own; those stay with append.
- With stable row ids, an updated row keeps its id, and an older segment goes on answering with the
  row's old value once a newer one covers its new place: WRONG results. Merging drops old values, so
  there every append merges all segments, and segments are only built over all fragments.
- Segments lose the settings of index types that don't describe them (zone maps, bloom filters), and
  the page size of a BTREE, on which no answer depends. A full-text index tells its settings only
  once it covers something; before that, only an append knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from pydantic import Field

from memwal.errors import Usage
from memwal.indexes import FragmentFacts, IndexFacts, Progress, TableIndexes, find_behind
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.report import DONE, CompactionAdvice, Part, TableReport
from memwal.text import count_of

# Texts take about ten times as long as other values.
_WEIGHTS = {"INVERTED": 10, "NGRAM": 10}


def weigh(kind: str, rows: int) -> int:
    """How many rows of a plain column take as long to index as these of an index's type."""
    return rows * _WEIGHTS.get(kind, 1)


# Types whose segments are proven right by queries (tests/jobs/index_catchup), with all settings at
# their defaults or told by the index itself.
SEGMENT_KINDS = frozenset({"BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "INVERTED"})
# A codebook has 2**8 centroids, and needs a row for each.
PQ_TRAINING_ROWS_MIN = 256
# What Lance wants in a partition where the index doesn't say; of other types a million.
_PARTITION_TARGETS = {"IVF_FLAT": 4096, "IVF_RQ": 4096, "IVF_SQ": 8192, "IVF_PQ": 8192}


class Method(StrEnum):
    """How an index catches up. NONE indexes nothing; it may still record progress."""

    NONE = "none"
    APPEND = "append"
    SEGMENTS = "segments"
    RETRAIN = "retrain"


@dataclass(frozen=True, kw_only=True, slots=True)
class CatchupLimits:
    """Bounds of a catch-up run. Rows above `append_rows_max` are built as segments side by side."""

    append_rows_max: int = 5_000_000
    segment_rows_min: int = 250_000
    segment_tasks_max: int = 8
    retrain_unindexed_percent_max: float = 50.0
    retrain_segments_max: int = 16
    conflict_attempts_max: int = 10
    conflict_seconds_max: float = 600.0
    conflict_wait_seconds_max: float = 5.0
    fault_attempts_max: int = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexPlan:
    """What to do for one index, and why.

    `records` asks for the commit that records progress and indexes nothing. `groups` are the
    fragments of each segment to build; without them, Lance's own optimise does the work and merges
    the last `segments_to_merge` segments into what it adds, or, for None, splits partitions and
    merges what it likes. `rows` is how many are indexed.
    `refusal` is set when the index can't be caught up at all.
    """

    name: str
    kind: str
    method: Method = Method.NONE
    reason: str = ""
    uncovered_rows: int = 0
    rows: int = 0
    records: bool = False
    segments_to_merge: int | None = 0
    groups: tuple[tuple[FragmentFacts, ...], ...] = ()
    refusal: str | None = None

    @property
    def indexes(self) -> bool:
        """Whether the plan indexes rows."""
        return self.method is not Method.NONE

    @property
    def has_work(self) -> bool:
        """Whether the plan makes a commit."""
        return self.indexes or self.records


def check_names(table: TableIndexes, names: Iterable[str], uri: str) -> None:
    """Raise Usage for an index that the table does not have."""
    for name in names:
        if table.index(name) is None:
            known = ", ".join(i.name for i in table.indexes) or "none"
            raise Usage(f"{uri}: the table has no index {name!r}; it has: {known}")


def plan_indexes(
    table: TableIndexes,
    catchup: Mapping[str, Progress],
    merged: Progress,
    request: CatchupRequest,
    limits: CatchupLimits,
) -> tuple[IndexPlan, ...]:
    """Make a plan for each index that is asked for, in the table's order."""
    asked = choose_method(request)
    return tuple(
        plan_index(table, index, catchup.get(index.name), merged, asked, limits)
        for index in table.indexes
        if not request.indexes or index.name in request.indexes
    )


def choose_method(request: CatchupRequest) -> Method | None:
    """The method that is asked for; None: by cost."""
    return None if request.method == "auto" else Method(request.method)


def plan_index(
    table: TableIndexes,
    index: IndexFacts,
    recorded: Progress | None,
    merged: Progress,
    asked: Method | None,
    limits: CatchupLimits,
) -> IndexPlan:
    """Plan how one index catches up: by method `asked` if that is possible, else by cost."""
    planner = _Planner(table=table, index=index, asked=asked, limits=limits)
    return planner.plan(recorded, merged)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Planner:
    """Makes the plan for one index of a table."""

    table: TableIndexes
    index: IndexFacts
    asked: Method | None
    limits: CatchupLimits

    def plan(self, recorded: Progress | None, merged: Progress) -> IndexPlan:
        """Choose how the index catches up."""
        uncovered = self.table.uncovered(self.index)
        refusal = self._refusal() if uncovered else None
        if refusal is not None:
            return replace(self._nothing, reason=refusal, refusal=refusal)
        if self.asked is Method.RETRAIN and self.table.fragments and self._is_trainable:
            return self._retrain("asked for")
        why = self._why_retrain()
        if self.asked is None and why is not None:
            return self._retrain(why)
        return self._extend(uncovered) if uncovered else self._record(recorded, merged)

    @property
    def _nothing(self) -> IndexPlan:
        """The plan to do nothing, from which the others start."""
        index = self.index
        return IndexPlan(name=index.name, kind=index.kind, uncovered_rows=self._rows)

    @property
    def _rows(self) -> int:
        return self.table.uncovered_rows(self.index)

    @property
    def _is_trainable(self) -> bool:
        return "PQ" not in self.index.kind or self.table.rows >= PQ_TRAINING_ROWS_MIN

    @property
    def _takes_segments(self) -> bool:
        """Whether segments of the index may be built separately."""
        index = self.index
        # A full-text index that covers nothing tells no stop words, so it is appended to; one on a
        # nested column can't be.
        is_described = index.kind != "INVERTED" or index.is_nested or bool(index.covered)
        return index.kind in SEGMENT_KINDS and len(index.columns) == 1 and is_described

    def _refusal(self) -> str | None:
        """Why the index can't be extended at all; None when it can."""
        index = self.index
        if index.is_vector and not index.covered and not self._is_trainable:
            return (
                "the index covers nothing yet, and training it takes at least "
                f"{PQ_TRAINING_ROWS_MIN} rows; the table has {self.table.rows:,}"
            )
        if index.is_nested and not self._takes_segments:
            return f"Lance can't extend a {index.kind} index on a nested column: drop and create it"
        return None

    def _record(self, recorded: Progress | None, merged: Progress) -> IndexPlan:
        late = find_behind(recorded, merged)
        if not late:
            why = "covers every fragment, and merge progress is recorded"
            return replace(self._nothing, reason=why)
        if not self.table.fragments:  # seen: its optimise commits nothing then
            why = "the table has no rows; Lance records merge progress with the next ones"
            return replace(self._nothing, reason=why)
        what = "has no entry" if recorded is None else f"is old for {count_of(len(late), 'shard')}"
        why = f"covers every fragment, but index_catchup {what}: one metadata commit records it"
        return replace(self._nothing, records=True, reason=why)

    def _extend(self, uncovered: Sequence[FragmentFacts]) -> IndexPlan:
        rows, index, asked = self._rows, self.index, self.asked
        work = replace(self._nothing, rows=rows)
        large = weigh(index.kind, rows) > self.limits.append_rows_max
        size = f"{rows:,} of {count_of(self.table.rows, 'row')}"
        size += f" in {count_of(len(uncovered), 'fragment')}"
        note = ""
        if self._takes_segments:
            if self.table.stable_row_ids and (index.is_nested or large or asked is Method.SEGMENTS):
                why = "older segments would answer with old values (stable row ids)"
                return self._retrain(f"{size}; {why}")
            if index.is_nested:
                why = "; Lance's optimise can't find a nested column"
                return self._build(uncovered, size + why)
            if asked is Method.SEGMENTS:
                return self._build(uncovered, f"{size}; asked for")
            if asked is None and large and len(uncovered) > 1:
                return self._build(uncovered, f"{size}, built side by side")
        elif asked is Method.SEGMENTS or large:
            why = "their trained model" if index.is_vector else "settings that it doesn't describe"
            note = f"; segments of a {index.kind} index would not share {why}"
        crowded = 0 if self.table.stable_row_ids else count_crowded(index)
        if crowded:
            reason = f"{size}; a partition of {count_of(crowded, 'row')} is split{note}"
            return replace(work, method=Method.APPEND, segments_to_merge=None, reason=reason)
        merge = count_mergeable(self.table, index, rows)
        last = "the last segment" if merge == 1 else f"the last {merge} segments"
        merging = f", merged with {last}" if merge else ""
        reason = f"{size}{merging}{note}"
        return replace(work, method=Method.APPEND, segments_to_merge=merge, reason=reason)

    def _build(self, uncovered: Sequence[FragmentFacts], reason: str) -> IndexPlan:
        groups = group_fragments(uncovered, self.limits, self.index.kind)
        why = f"{reason}; {count_of(len(groups), 'segment')}"
        return replace(
            self._nothing, rows=self._rows, method=Method.SEGMENTS, groups=groups, reason=why
        )

    def _retrain(self, why: str) -> IndexPlan:
        table, index, how = self.table, self.index, ""
        groups: tuple[tuple[FragmentFacts, ...], ...] = ()
        if self._takes_segments:
            groups = group_fragments(table.fragments, self.limits, index.kind)
            how = f"; rebuilt as {count_of(len(groups), 'segment')} over all fragments"
        return replace(
            self._nothing,
            rows=table.rows,
            method=Method.RETRAIN,
            segments_to_merge=0 if groups else len(index.segments),
            groups=groups,
            reason=f"{why}{how}",
        )

    def _why_retrain(self) -> str | None:
        """Which limit the index crosses; None for none. A retrain mends each of them."""
        table, index, limits = self.table, self.index, self.limits
        if not table.rows or not self._is_trainable:
            return None
        segments = len(index.segments)
        if segments > limits.retrain_segments_max:
            return f"{segments} segments, over the limit of {limits.retrain_segments_max}"
        if not index.is_vector:
            return None
        percent = 100.0 * self._rows / table.rows
        if percent > limits.retrain_unindexed_percent_max:
            return (
                f"{percent:.0f} % of {table.rows:,} rows are not indexed, over the limit of "
                f"{limits.retrain_unindexed_percent_max:g} %: the model knows the others only"
            )
        return None


def count_mergeable(table: TableIndexes, index: IndexFacts, rows: int) -> int:
    """How many of the last segments an append merges, so that their number stays small.

    A segment is merged if it is at most twice as large as all younger ones together. Sizes then
    grow like powers of two, every row is rewritten only a few times, and the big first segment is
    left alone. A vector index's first segment always is, as the model was trained on it. With
    stable row ids, all segments are merged (see the module docstring).
    """
    if table.stable_row_ids:
        return len(index.segments)
    sizes = {f.fragment_id: f.rows for f in table.fragments}
    segments = index.segments[1:] if index.is_vector else index.segments
    merge, younger = 0, rows
    for segment in reversed(segments):
        size = sum(sizes.get(fragment, 0) for fragment in segment.fragment_ids)
        if size > 2 * younger:
            break
        merge += 1
        younger += size
    return merge


def count_crowded(index: IndexFacts) -> int:
    """How many rows the fullest partition has that Lance would split; 0 for none.

    One counts only if it has doubled since all was one segment: what Lance can't split further (a
    vector that half of the rows share) is not tried at every catch-up.
    """
    target = index.partition_target_rows or _PARTITION_TARGETS.get(index.kind, 2**20)
    grown = [
        sum(rows)
        for rows in zip(*index.partition_rows, strict=False)
        if sum(rows) > max(4 * target, 2 * rows[0])
    ]
    return max(grown, default=0)


def group_fragments(
    fragments: Sequence[FragmentFacts], limits: CatchupLimits, kind: str = ""
) -> tuple[tuple[FragmentFacts, ...], ...]:
    """Group fragments, in order, into groups of about equal rows, within limits on number and size.

    There are as many groups as have `segment_rows_min` rows each.
    """
    rows = sum(f.rows for f in fragments)
    tasks = min(limits.segment_tasks_max, limits.retrain_segments_max, len(fragments))
    tasks = max(1, min(tasks, ceil(weigh(kind, rows) / limits.segment_rows_min)))
    groups: list[tuple[FragmentFacts, ...]] = []
    group: list[FragmentFacts] = []
    taken = 0
    for fragment in sorted(fragments, key=lambda f: f.fragment_id):
        group.append(fragment)
        taken += fragment.rows
        if taken * tasks >= rows * (len(groups) + 1) and len(groups) < tasks - 1:
            groups.append(tuple(group))
            group = []
    if group:
        groups.append(tuple(group))
    return tuple(groups)


# ---- what is reported


class IndexCatchupReport(Part):
    """One index, of index catch-up or of the catch-up within a compaction.

    `method` none with outcome done: only its progress had to be recorded. `unindexed_rows_after`
    is None when the index was dropped meanwhile. `caught_up` is what the table's own manifest
    records after the run, in a dry run what it would record. `rows` go through the method, in
    `seconds`.
    """

    name: str
    kind: str | None = None
    method: str
    rows: int = 0
    unindexed_rows_before: int
    unindexed_rows_after: int | None
    caught_up_before: dict[str, int] = Field(default_factory=dict)
    caught_up: dict[str, int] = Field(default_factory=dict)
    seconds: float = 0.0
    reason: str | None = None
    conflicts: int = 0


class IndexCatchupTableReport(TableReport):
    """One table of an index catch-up. `columns` are the types of its columns, by their names.

    `compaction` is what could be compacted afterwards.
    """

    columns: dict[str, str] = {}
    compaction: CompactionAdvice | None = None
    indexes: tuple[IndexCatchupReport, ...] = ()
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """How many indexes caught up, and over how many rows."""
        done = [i for i in self.indexes if i.outcome == DONE]
        known = [i for i in done if i.unindexed_rows_after is not None]
        rows = [max(0, i.unindexed_rows_before - (i.unindexed_rows_after or 0)) for i in known]
        return {"indexes": len(done), "rows_indexed": sum(rows)}
