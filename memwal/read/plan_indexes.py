"""Says, for a query that an index could answer, what answers it in each table. Pure.

The spec's "Indexed Read Plan": rows that were merged after the base's index was built, those of the
generations in (caught up, merged], are to be looked up in these generations' own indexes, not
scanned in the base. This reader does not do so, and says both:

- that a generation's rows are in the base's uncovered fragments does not make them all that is
  there: rows that were appended to the base, or changed in it since, are in no generation. Lance
  scans exactly the fragments that its index does not cover, which is right whatever they hold;
- pylance 14 does neither: its LsmVectorSearchPlanner looks into indexes only, and leaves such rows
  out (it finds them when it is fed the generations of the gap).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memwal.jobs.index_catchup.plan import IndexFacts, TableIndexes
from memwal.model import FlushedGeneration, MemWalState, ShardId
from memwal.read.plan import ReadPlan, ShardRead

BASE_INDEX = "base index"
OWN_INDEX = "own index"
SCAN = "scan"
NOT_READ = "not read"

# How Lance's plans name the indexes that they use.
_USED = re.compile(r"\]@([^()\n]+)\(|ANNSubIndex: name=([^,\n]+)|MatchQuery: .*?index=([^,\n]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What answers the query in one table or part of it.

    `by` is what this read does, as Lance's plan has it; `spec` what the spec would have done.
    `rows` is None where it is not known. `generation` is None for the base.
    """

    source: str
    by: str
    spec: str
    why: str
    shard_id: ShardId | None = None
    generation: int | None = None
    rows: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedRead:
    """One index that the query asks for. `caught_up` is None for a shard whose entry is absent."""

    name: str
    kind: str
    column: str
    purpose: str
    caught_up: Mapping[ShardId, int | None]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadFacts:
    """What was found out about the tables of a read.

    `base_plan` and `plans` are Lance's plans, the latter by shard and generation (None: nothing is
    scanned by Lance there); `own` are the names of a generation's own indexes, those of merged
    generations that are still listed among them.
    """

    indexes: TableIndexes
    base_plan: str
    plans: Mapping[tuple[ShardId, int], str | None]
    own: Mapping[tuple[ShardId, int], frozenset[str]]


def used_indexes(plan_text: str | None) -> frozenset[str]:
    """The indexes that a plan of Lance's uses."""
    found = _USED.finditer(plan_text or "")
    return frozenset(next(name for name in match.groups() if name) for match in found)


def wanted_indexes(plan: ReadPlan, indexes: TableIndexes) -> Iterator[tuple[IndexFacts, str]]:
    """Indexes over what the query asks, and what for. By the filter's text, so rather too many."""
    text = plan.predicate or ""
    for index in indexes.indexes:
        column = index.columns[0] if index.columns else ""
        if index.is_vector:
            if plan.nearest is not None and plan.nearest.column == column:
                yield index, "nearest"
        elif column and re.search(rf"(?<!\w){re.escape(column)}(?!\w)", text, re.IGNORECASE):
            yield index, "full text" if index.kind == "INVERTED" else "filter"


def indexed_reads(plan: ReadPlan, state: MemWalState, facts: ReadFacts) -> tuple[IndexedRead, ...]:
    """For each index that the query asks for, what answers it where."""
    return tuple(
        IndexedRead(
            name=index.name,
            kind=index.kind,
            column=index.columns[0],
            purpose=purpose,
            caught_up=_caught_up(plan, state, index.name),
            answers=(
                *_base(index, facts),
                *(a for shard in plan.shards for a in _gap(index, shard, state, facts)),
                *(a for shard in plan.shards for a in _pending(index, shard, facts)),
            ),
        )
        for index, purpose in wanted_indexes(plan, facts.indexes)
    )


def _caught_up(plan: ReadPlan, state: MemWalState, name: str) -> dict[ShardId, int | None]:
    entry = state.index_catchup.get(name)
    return {s.shard_id: None if entry is None else entry.get(s.shard_id, 0) for s in plan.shards}


def gap_generations(
    index: IndexFacts, shard: ShardRead, state: MemWalState, indexes: TableIndexes
) -> tuple[FlushedGeneration, ...]:
    """Listed generations that are merged, and that the index is not known to cover.

    An absent entry says nothing (seen on pylance 14); where every fragment is covered, nothing is
    missing whatever the entry says.
    """
    if not indexes.uncovered(index):
        return ()
    caught_up = state.index_catchup.get(index.name, {}).get(shard.shard_id, 0)
    return tuple(g for g in shard.skipped if g.generation > caught_up)


def _base(index: IndexFacts, facts: ReadFacts) -> Iterator[Answer]:
    uncovered = facts.indexes.uncovered(index)
    rows = sum(fragment.rows for fragment in uncovered)
    used = index.name in used_indexes(facts.base_plan)
    yield Answer(
        source="base, covered by the index",
        by=BASE_INDEX if used else SCAN,
        spec=BASE_INDEX,
        why="in Lance's plan" if used else "Lance's plan does not use the index for this query",
        rows=facts.indexes.rows - rows,
    )
    if uncovered:
        yield Answer(
            source="base, not covered",
            by=SCAN,
            spec=NOT_READ,
            why="rows merged, appended or changed since the index was extended; memwal "
            "index-catchup extends it",
            rows=rows,
        )


def _gap(
    index: IndexFacts, shard: ShardRead, state: MemWalState, facts: ReadFacts
) -> Iterator[Answer]:
    for generation in gap_generations(index, shard, state, facts.indexes):
        own = index.name in facts.own.get((shard.shard_id, generation.generation), ())
        yield _answer(
            shard, generation, by=NOT_READ, spec=OWN_INDEX if own else SCAN,
            why="merged; its rows are among the base's that are scanned",
        )  # fmt: skip


def _pending(index: IndexFacts, shard: ShardRead, facts: ReadFacts) -> Iterator[Answer]:
    for generation in shard.generations:
        key = (shard.shard_id, generation.generation)
        own = index.name in facts.own.get(key, ())
        used = index.name in used_indexes(facts.plans.get(key))
        if used:
            why = "in Lance's plan"
        elif own:
            why = "it has the index, but Lance's plan does not use it for this query"
        else:
            why = "the generation was flushed without the index"
        yield _answer(
            shard, generation, by=OWN_INDEX if used else SCAN, spec=OWN_INDEX if own else SCAN,
            why=why,
        )  # fmt: skip


def _answer(
    shard: ShardRead, generation: FlushedGeneration, *, by: str, spec: str, why: str
) -> Answer:
    return Answer(
        source=f"generation {generation.generation}",
        by=by,
        spec=spec,
        why=why,
        shard_id=shard.shard_id,
        generation=generation.generation,
        rows=generation.physical_rows,
    )


def differences(reads: Sequence[IndexedRead]) -> tuple[str, ...]:
    """Where pylance's own planners would answer otherwise, for people."""
    found = []
    for read in reads:
        if read.purpose != "nearest":
            continue
        scanned = [a for a in read.answers if a.by == SCAN and a.rows]
        if scanned:
            rows = sum(a.rows or 0 for a in scanned)
            found.append(
                f"pylance's LsmVectorSearchPlanner would not see up to {rows} rows that "
                f"{read.name} does not cover: it looks into indexes only"
            )
    return tuple(found)
