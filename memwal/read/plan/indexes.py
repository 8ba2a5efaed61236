"""Explains what answers a query in each table, for each index that the query could use. Pure.

By the spec's "Indexed Read Plan", rows that were merged after the base's index was built are looked
up in the indexes of the generations that they came from, those in (caught up, merged], and not
scanned in the base. This read instead has Lance scan the fragments that the base's index does not
cover, because rows that were appended to the base, or changed in it, are in no generation.
`by_the_spec` shows where the two differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memwal.indexes import IndexFacts, TableIndexes
from memwal.model import FlushedGeneration, MemWalState, ShardId
from memwal.read.plan.sources import ReadPlan, ShardRead

BASE_INDEX = "base index"
OWN_INDEX = "own index"
SCAN = "scan"
NOT_READ = "not read"

# How Lance's plans name the indexes that they use.
_SEARCHED = re.compile(r"(?<!Flat)(?:Match|Phrase)Query: column=")
_USED = re.compile(r"\]@([^()\n]+)\(|ANNSubIndex: name=([^,\n]+)|MatchQuery: .*?index=([^,\n]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What answers the query in one table or part of it, from Lance's plan.

    `shard_id` is None for the base; `rows` is None when not known.
    """

    source: str
    shard_id: ShardId | None = None
    rows: int | None = None
    answered_by: str
    by_the_spec: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedRead:
    """One index that the query may use. `caught_up` is None for a shard whose entry is absent."""

    name: str
    kind: str
    column: str
    purpose: str
    caught_up: Mapping[ShardId, int | None]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadFacts:
    """What was found out about the tables of a read.

    `base_plan` and `plans` are Lance's plans, the latter by shard and generation (None: Lance scans
    nothing there). `own` are the names of generations' own indexes, including merged generations
    that are still listed.
    """

    indexes: TableIndexes
    base_plan: str
    plans: Mapping[tuple[ShardId, int], str | None]
    own: Mapping[tuple[ShardId, int], frozenset[str]]


def find_used_indexes(explain_scan: str | None) -> frozenset[str]:
    """The names of the indexes that one of Lance's plans uses."""
    found = _USED.finditer(explain_scan or "")
    return frozenset(next(name for name in match.groups() if name) for match in found)


def find_wanted_indexes(plan: ReadPlan, indexes: TableIndexes) -> Iterator[tuple[IndexFacts, str]]:
    """Indexes that the query may use, and for what; by the filter's text, so maybe too many."""
    text = plan.predicate or ""
    for index in indexes.indexes:
        column = index.columns[0] if index.columns else ""
        if index.is_vector:
            if plan.nearest is not None and plan.nearest.column == column:
                yield index, "nearest"
        elif plan.search is not None and plan.search.column == column and index.kind == "INVERTED":
            yield index, "search"
        elif column and re.search(rf"(?<!\w){re.escape(column)}(?!\w)", text, re.IGNORECASE):
            yield index, "full text" if index.kind == "INVERTED" else "filter"


def explain_indexes(
    plan: ReadPlan, state: MemWalState, facts: ReadFacts
) -> tuple[IndexedRead, ...]:
    """For each index that the query may use, what answers the query in each table."""
    found = []
    for index, purpose in find_wanted_indexes(plan, facts.indexes):
        entry = state.index_catchup.get(index.name)
        shards = [shard.shard_id for shard in plan.shards]
        caught_up = {s: None if entry is None else entry.get(s, 0) for s in shards}
        found.append(
            IndexedRead(
                name=index.name,
                kind=index.kind,
                column=index.columns[0],
                purpose=purpose,
                caught_up=caught_up,
                answers=(
                    *_explain_base(index, purpose, facts),
                    *_explain_generations(index, purpose, plan, state, facts),
                ),
            )
        )
    return tuple(found)


def find_gap(
    index: IndexFacts, shard: ShardRead, state: MemWalState, indexes: TableIndexes
) -> tuple[FlushedGeneration, ...]:
    """Listed generations that are merged but not known to be covered by the index.

    An absent entry proves nothing (seen on pylance 14). If every fragment is covered, nothing is
    missing, whatever the entry says.
    """
    if not indexes.uncovered(index):
        return ()
    caught_up = state.index_catchup.get(index.name, {}).get(shard.shard_id, 0)
    return tuple(g for g in shard.skipped if g.generation > caught_up)


def _is_used(index: IndexFacts, purpose: str, lance_plan: str | None) -> bool:
    if purpose == "search":  # Lance names no index then
        return _SEARCHED.search(lance_plan or "") is not None
    return index.name in find_used_indexes(lance_plan)


def _explain_base(index: IndexFacts, purpose: str, facts: ReadFacts) -> Iterator[Answer]:
    uncovered = facts.indexes.uncovered(index)
    rows = sum(fragment.rows for fragment in uncovered)
    used = _is_used(index, purpose, facts.base_plan)
    yield Answer(
        source="base, covered by the index",
        rows=facts.indexes.rows - rows,
        answered_by=BASE_INDEX if used else SCAN,
        by_the_spec=BASE_INDEX,
        why="in Lance's plan" if used else "Lance's plan does not use the index for this query",
    )
    if uncovered:
        yield Answer(
            source="base, not covered",
            rows=rows,
            answered_by=SCAN,
            by_the_spec=NOT_READ,
            why="rows merged, appended or changed since the index was extended; memwal "
            "index-catchup extends it",
        )


def _explain_generations(
    index: IndexFacts, purpose: str, plan: ReadPlan, state: MemWalState, facts: ReadFacts
) -> Iterator[Answer]:
    gap = [(s, g) for s in plan.shards for g in find_gap(index, s, state, facts.indexes)]
    pending = [(s, g) for s in plan.shards for g in s.generations]
    for place, (shard, generation) in enumerate([*gap, *pending]):
        listed = (shard.shard_id, generation.generation)
        own = index.name in facts.own.get(listed, ())
        if place < len(gap):
            by, why = NOT_READ, "merged; its rows are among the base's that are scanned"
        elif _is_used(index, purpose, facts.plans.get(listed)):
            by, why = OWN_INDEX, "in Lance's plan"
        elif own and purpose == "search":
            by, why = SCAN, "its index lacks rows, or cuts texts in another way than the base's"
        elif own:
            by, why = SCAN, "it has the index, but Lance's plan does not use it for this query"
        else:
            by, why = SCAN, "the generation was flushed without the index"
        yield Answer(
            source=f"generation {generation.generation}",
            shard_id=shard.shard_id,
            rows=generation.physical_rows,
            answered_by=by,
            by_the_spec=OWN_INDEX if own else SCAN,
            why=why,
        )


def find_differences(reads: Sequence[IndexedRead]) -> list[str]:
    """Lines about where pylance's own planners would leave rows out."""
    found = []
    for read in reads:
        rows = sum(answer.rows or 0 for answer in read.answers if answer.answered_by == SCAN)
        if read.purpose == "nearest" and rows:
            found.append(
                f"pylance's LsmVectorSearchPlanner would not see up to {rows} rows that "
                f"{read.name} does not cover: it looks into indexes only"
            )
    return found
