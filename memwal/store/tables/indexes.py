"""What the base table's indexes cover, and the commit that replaces the MemWAL index's entry.

Lance accepts a commit of an entry from a stale version and reports no conflict: it overwrites newer
progress. So callers must read the entry just before the commit, and check afterwards what landed in
between.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import lance
from lance.commit import CommitConflictError
from lance.dataset import Index

from memwal.errors import LostRace, Missing, StoreUnavailable
from memwal.format import layout
from memwal.format.layout import SYSTEM_INDEXES
from memwal.indexes import IndexFacts, SegmentFacts, TableIndexes
from memwal.ports import Objects
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.lance_calls import (
    ERRORS,
    Says,
    call_lance,
    is_panic,
    says,
    tidy_text,
)

# Of a vector index's statistics only the partition sizes are needed; its centroids are large.
os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")

# Lance's name of a type (describe_indices) -> the name under which it is built.
_KINDS = {
    "BTree": "BTREE",
    "Bitmap": "BITMAP",
    "LabelList": "LABEL_LIST",
    "Inverted": "INVERTED",
    "NGram": "NGRAM",
    "ZoneMap": "ZONEMAP",
    "BloomFilter": "BLOOMFILTER",
}

LET_GO_MESSAGE = "memwal: lets go of inherited merge progress"
"""The commit message that marks a commit which lowers progress on purpose."""
_INDICES = "_indices"
# What Lance raises over an index's files that are damaged, a panic aside.
_UNREADABLE = (*ERRORS, KeyError, TypeError)
_TYPE_URL = "/lance.table.MemWalIndexDetails"


class LanceIndexes:
    """Reads the indexes of a table's versions."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables

    def facts(self, version: int) -> TableIndexes:
        """Fragments and indexes of a version. Raises what `call_lance` raises."""
        dataset = self._tables.seen(version)
        fragments = self._tables.fragments(version)
        there = {f.fragment_id for f in fragments}
        return call_lance(
            lambda: TableIndexes(
                version=version,
                fragments=fragments,
                indexes=tuple(_read_facts(dataset, i, there) for i in describe_indexes(dataset)),
                stable_row_ids=bool(dataset.has_stable_row_ids),
            )
        )


def _read_facts(dataset: Any, described: Any, fragments: set[int]) -> IndexFacts:
    facts = IndexFacts(
        name=described.name,
        kind=index_kind(described),
        columns=tuple(described.field_names),
        segments=tuple(
            SegmentFacts(uuid=str(s.uuid), fragment_ids=frozenset(s.fragment_ids))
            for s in described.segments
        ),
    )
    if not facts.is_vector or len(facts.segments) < 2 or fragments <= facts.covered:
        return facts
    found: Any = ""
    with suppress(StoreUnavailable):
        found = _try_open(dataset, facts.name)
    if isinstance(found, str):
        return facts  # extending it tells what is wrong, and other indexes go on
    # An index of an old Lance may tell less.
    parts = (part.get("partitions", ()) for part in found["indices"])
    return replace(
        facts,
        partition_rows=tuple(tuple(int(p.get("size", 0)) for p in rows) for rows in parts),
        partition_target_rows=(described.details or {}).get("target_partition_size"),
    )


def list_index_folders(dataset: Any) -> dict[str, int | None]:
    """The folders of a version's indexes, one a segment, that lie in the table's own; and their
    bytes, where those are known.
    """
    return {
        f"{_INDICES}/{segment.uuid}": segment.size_bytes
        for index in describe_indexes(dataset)
        for segment in index.segments
        if segment.base_id is None
    }


def find_index_faults(objects: Objects, dataset: Any) -> list[tuple[str, str, str]]:
    """What is wrong with a version's indexes: name, path of the segment, and what.

    Each is opened for its statistics, and its files have to be as long together as the manifest
    says. A bit that flipped in a file shows only where opening it fails.
    """
    faults = []
    for index in describe_indexes(dataset):
        paths = [f"{_INDICES}/{s.uuid}" for s in index.segments if s.base_id is None]
        sizes = [s.size_bytes for s in index.segments if s.base_id is None]
        for path, size in zip(paths, sizes, strict=True):
            found = sum(file.size_bytes for file in objects.list(path))
            if size and found != size:
                text = f"index {index.name!r} has files of {found} bytes, {size} were written"
                faults.append((index.name, path, text))
        if not any(name == index.name for name, _, _ in faults) and paths:
            problem = _try_open(dataset, index.name)
            faults += [(index.name, paths[0], problem)] if isinstance(problem, str) else []
    return faults


def _try_open(dataset: Any, name: str) -> Any:
    """The statistics of an index, or a text that says why it can't be opened.

    Raises StoreUnavailable.
    """
    try:
        return dataset.stats.index_stats(name)
    except BaseException as error:  # a panic in Lance's Rust code is no Exception
        if not is_panic(error) and not isinstance(error, _UNREADABLE):
            raise
        text = f"index {name!r} can't be opened: {tidy_text(error)}"
        if says(error, Says.UNREACHED) and not says(error, Says.GONE):
            raise StoreUnavailable(f"{dataset.uri}: {text}") from None
        return text


def describe_indexes(dataset: Any) -> list[Any]:
    """Lance's descriptions of a version's indexes, sorted by name, without its system indexes."""
    found = [i for i in dataset.describe_indices() if i.name not in SYSTEM_INDEXES]
    return sorted(found, key=lambda i: str(i.name))


def find_index(dataset: Any, name: str) -> Any:
    """Lance's description of one index. Raises Missing when the version does not have it."""
    found = call_lance(lambda: describe_indexes(dataset))
    for index in found:
        if index.name == name:
            return index
    raise Missing(f"{dataset.uri}: index {name!r} is gone in version {dataset.version}")


def index_kind(described: Any) -> str:
    """The name by which an index of the described type is created."""
    kind = str(described.index_type)
    return _KINDS.get(kind, kind.upper())


def read_text_index(dataset: Any, described: Any) -> tuple[dict[str, Any], int]:
    """The settings of a full-text index, and how many texts are in it.

    Lance's description leaves out custom stop words; the statistics of the segments have them. The
    first segment's settings win. Those of an index without segments are not known.
    """
    parts = dataset.stats.index_stats(described.name).get("indices", ())
    settings = dict(described.details)
    for part in reversed(parts):
        settings |= part.get("params", {})
    return settings, sum(int(part.get("num_docs", 0)) for part in parts)


def replace_mem_wal_entry(
    tables: LanceTables,
    *,
    version: int,
    index_uuid: str,
    created_at_millis: int,
    details: bytes,
    message: str | None = None,
) -> int:
    """Replace the entry that `version` has; returns the version that landed.

    Raises LostRace for a conflict, StoreUnavailable for an error with an open outcome.
    """
    entry = Index(
        uuid=index_uuid,
        name=layout.MEM_WAL_INDEX_NAME,
        fields=[],
        dataset_version=version,
        fragment_ids=set(),
        index_version=0,
        created_at=datetime.fromtimestamp(created_at_millis / 1000, UTC),
        index_details=(_TYPE_URL, details),
    )
    base = tables.at(version)
    operation = lance.LanceOperation.CreateIndex(new_indices=[entry], removed_indices=[])
    try:
        landed = lance.LanceDataset.commit(
            base, operation, read_version=version, max_retries=0, commit_message=message
        )
    except ERRORS as error:
        lost = isinstance(error, CommitConflictError) or says(error, Says.CONFLICT)
        raise (LostRace if lost else StoreUnavailable)(tidy_text(error)) from None
    return int(landed.version)


def lets_go_of_progress(tables: LanceTables, version: int) -> bool:
    """Whether a version's commit lowered progress on purpose, as it was not of its shards."""
    transaction = tables.transaction(version)
    said = {} if transaction is None else transaction.transaction_properties or {}
    return LET_GO_MESSAGE in said.values()
