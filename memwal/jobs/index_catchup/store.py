"""The base table's indexes: what they cover, and the commits that extend them."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from memwal.errors import LostRace, MemWalError, Missing, Refused, StoreUnavailable, Unsupported
from memwal.format.layout import SYSTEM_INDEXES
from memwal.jobs.index_catchup.plan import (
    PQ_TRAINING_ROWS_MIN,
    FragmentFacts,
    IndexFacts,
    SegmentFacts,
    TableIndexes,
)
from memwal.jobs.index_catchup.ports import BuiltSegment, SegmentTask
from memwal.store.table import LanceTables, is_panic, tidy_text

T = TypeVar("T")

# Partition sizes are all that is wanted of a vector index's statistics; its centroids are large.
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
_CONFLICT = re.compile(
    r"commit conflict|preempted by concurrent|too many concurrent writers|"
    r"incompatible transaction|concurrent modification|would orphan fragments",
    re.IGNORECASE,
)
_CANT = re.compile(r"invalid user input|not supported|not enough rows|unsupported", re.IGNORECASE)


def committed(call: Callable[[], T]) -> T:
    """Run something of Lance's that may commit; conflicts become LostRace (see the port)."""
    try:
        return call()
    except MemWalError:
        raise
    except Exception as error:
        raise _as_ours(error) from None
    except BaseException as panic:
        if not is_panic(panic):
            raise
        raise Unsupported(f"Lance panicked: {tidy_text(panic)}") from None


def _as_ours(error: Exception) -> MemWalError:
    text = tidy_text(error)
    if _CONFLICT.search(str(error)):
        return LostRace(text)
    if _CANT.search(text) or isinstance(error, NotImplementedError | TypeError | KeyError):
        return Unsupported(text)
    return StoreUnavailable(text)


class LanceIndexTable:
    """The IndexTable port over Lance."""

    def __init__(self, tables: LanceTables) -> None:
        self._tables = tables
        # By the segments they were told of: a segment never changes, and a run looks three times.
        self._partitions: dict[tuple[str, ...], tuple[int, ...]] = {}

    def facts(self, version: int) -> TableIndexes:
        """Fragments and indexes of a version (see the port)."""
        dataset = self._tables.seen(version)
        return committed(
            lambda: TableIndexes(
                version=version,
                fragments=tuple(
                    FragmentFacts(fragment_id=f.fragment_id, rows=f.metadata.num_rows)
                    for f in dataset.get_fragments()
                ),
                indexes=tuple(self._index(dataset, described) for described in _described(dataset)),
                stable_row_ids=bool(dataset.has_stable_row_ids),
            )
        )

    def record(self, name: str) -> None:
        """An optimise call that has nothing to index (see the port)."""
        self._optimise(name, num_indices_to_merge=0)

    def append(self, name: str, segments_to_merge: int) -> None:
        """Lance's incremental optimise (see the port)."""
        self._optimise(name, num_indices_to_merge=segments_to_merge)

    def retrain(self, name: str, segments_to_merge: int) -> None:
        """Train anew, or merge all segments (see the port)."""
        dataset = self._tables.base()
        described = _find(dataset, name)
        if not _kind(described).startswith("IVF_"):
            self._optimise(name, num_indices_to_merge=segments_to_merge)
            return
        if "PQ" in _kind(described):
            _check_training_rows(dataset, described)
        committed(lambda: dataset.optimize.optimize_indices(index_names=[name], retrain=True))

    def build(self, task: SegmentTask) -> BuiltSegment:
        """Write one segment (see the port)."""
        dataset = self._tables.at(task.version)
        described = _find(dataset, task.index)
        kind = _kind(described)
        # The settings of a full-text index are told; the other types built here have none.
        told = described.details if kind == "INVERTED" else {}
        segment = committed(
            lambda: dataset.create_index_uncommitted(
                described.field_names[0],
                kind,
                name=task.index,
                replace=True,
                fragment_ids=[f.fragment_id for f in task.fragments],
                **{key: value for key, value in told.items() if value is not None},
            )
        )
        return BuiltSegment(index=task.index, data=pickle.dumps(segment))

    def commit_segments(self, version: int, name: str, segments: Sequence[BuiltSegment]) -> None:
        """One commit, from a handle on the version that was indexed (see the port).

        A fresh handle would also take a segment whose fragments were compacted away meanwhile.
        """
        dataset = self._tables.at(version)
        column = _find(dataset, name).field_names[0]
        built = [pickle.loads(s.data) for s in segments]
        committed(lambda: dataset.commit_existing_index_segments(name, column, built))

    def _index(self, dataset: Any, described: Any) -> IndexFacts:
        kind = _kind(described)
        segments = tuple(
            SegmentFacts(uuid=str(s.uuid), fragment_ids=frozenset(s.fragment_ids))
            for s in described.segments
        )
        return IndexFacts(
            name=described.name,
            kind=kind,
            columns=tuple(described.field_names),
            segments=segments,
            partition_rows=(
                self._partition_rows(dataset, described.name, segments)
                if kind.startswith("IVF_")
                else ()
            ),
        )

    def _partition_rows(
        self, dataset: Any, name: str, segments: Sequence[SegmentFacts]
    ) -> tuple[int, ...]:
        key = (name, *sorted(s.uuid for s in segments))
        known = self._partitions.get(key, ()) or _partition_rows(dataset, name)
        self._partitions[key] = known
        return known

    def _optimise(self, name: str, **options: Any) -> None:
        # From the latest version: what a handle has seen is what its commit records.
        dataset = self._tables.base()
        _find(dataset, name)  # Lance passes over a name that it does not know
        committed(lambda: dataset.optimize.optimize_indices(index_names=[name], **options))


def _described(dataset: Any) -> list[Any]:
    found = [i for i in dataset.describe_indices() if i.name not in SYSTEM_INDEXES]
    return sorted(found, key=lambda i: str(i.name))


def _find(dataset: Any, name: str) -> Any:
    found = next((i for i in committed(lambda: _described(dataset)) if i.name == name), None)
    if found is None:
        raise Missing(f"{dataset.uri}: index {name!r} is gone in version {dataset.version}")
    return found


def _kind(described: Any) -> str:
    kind = str(described.index_type)
    return _KINDS.get(kind, kind.upper())


def _partition_rows(dataset: Any, name: str) -> tuple[int, ...]:
    """Partition sizes, added up over segments of one model; empty when Lance can't tell."""
    try:
        stats = dataset.stats.index_stats(name)
        sizes = [[int(p["size"]) for p in i.get("partitions", ())] for i in stats["indices"]]
    except (OSError, ValueError, KeyError):
        return ()
    sizes = [s for s in sizes if s]
    if len({len(s) for s in sizes}) > 1:
        return tuple(size for segment in sizes for size in segment)
    return tuple(sum(column) for column in zip(*sizes, strict=True))


def _check_training_rows(dataset: Any, described: Any) -> None:
    """Raise Refused where Lance would replace the index by one that covers nothing."""
    column = described.field_names[0]
    rows = committed(lambda: dataset.count_rows(filter=f"{_quoted(column)} IS NOT NULL"))
    if rows < PQ_TRAINING_ROWS_MIN:
        raise Refused(
            f"index {described.name!r}: retraining takes at least {PQ_TRAINING_ROWS_MIN} vectors, "
            f"the table has {rows}; with fewer, Lance leaves an index that covers nothing"
        )


def _quoted(column: str) -> str:
    return column if "`" in column else ".".join(f"`{part}`" for part in column.split("."))
