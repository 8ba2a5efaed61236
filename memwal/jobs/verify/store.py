"""Reads what verify judges: generations, their private indexes, and versions of the base."""

from __future__ import annotations

from contextlib import suppress

from memwal.errors import MemWalError, Missing
from memwal.format import codec, layout
from memwal.jobs.verify.plan import GenerationFacts, PrivateIndexFacts
from memwal.model import FlushedGeneration, ShardId
from memwal.store.generations import Generations
from memwal.store.table import LanceTables, tidy_text


def read_generation(
    generations: Generations, shard_id: ShardId, generation: FlushedGeneration
) -> GenerationFacts:
    """Whether a listed generation opens, and how many rows it physically has."""
    rows, error = None, None
    try:
        fragments = generations.open_dataset(shard_id, generation).get_fragments()
        rows = sum(int(fragment.physical_rows) for fragment in fragments)
    except MemWalError as caught:
        error = str(caught)
    except (OSError, ValueError) as caught:
        error = tidy_text(caught)
    return GenerationFacts(
        shard_id=shard_id,
        generation=generation.generation,
        claimed_rows=generation.physical_rows,
        physical_rows=rows,
        error=error,
    )


def read_private_index(
    generations: Generations, shard_id: ShardId, generation: FlushedGeneration
) -> PrivateIndexFacts:
    """How many of the generation's rows its private key index has, by metadata only."""
    rows = None
    if generation.physical_rows is not None:
        with suppress(MemWalError):
            rows = _count_indexed_rows(generations, shard_id, generation)
    return PrivateIndexFacts(
        shard_id=shard_id,
        generation=generation.generation,
        physical_rows=generation.physical_rows,
        indexed_rows=rows,
    )


def _count_indexed_rows(
    generations: Generations, shard_id: ShardId, generation: FlushedGeneration
) -> int | None:
    path = layout.private_index_path(shard_id, generation.path, generation.generation)
    try:
        codec.check_data_file(*generations.objects.get_tail(path, codec.DATA_FOOTER_BYTES))
    except Missing:
        generations.tables.generation(shard_id, generation)  # raises when all of it is gone
        return 0
    return generations.tables.file_rows(path)


def read_operation(tables: LanceTables, version: int) -> str | None:
    """What kind of commit made a version (`Restore`, `Update`, …); None when unknown."""
    try:
        transaction = tables.base(version).read_transaction(version)
    except (OSError, ValueError, MemWalError):
        return None
    return None if transaction is None else type(transaction.operation).__name__


def read_highest_fragment(tables: LanceTables, version: int) -> int | None:
    """The highest fragment id of a version; None when it has no fragment, or is gone."""
    try:
        ids = [fragment.fragment_id for fragment in tables.base(version).get_fragments()]
    except MemWalError:
        return None
    return max(ids, default=None)


def read_uncovered_fragments(tables: LanceTables, version: int) -> dict[str, tuple[int, ...]]:
    """For each index, the fragments of the version that none of its segments covers."""
    base = tables.base(version)
    live = {fragment.fragment_id for fragment in base.get_fragments()}
    covered: dict[str, set[int]] = {}
    for segment in base.list_indices():
        covered.setdefault(segment["name"], set()).update(segment["fragment_ids"])
    return {name: tuple(sorted(live - ids)) for name, ids in covered.items()}
