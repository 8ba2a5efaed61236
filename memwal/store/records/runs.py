"""Run records: one small JSON document a run under `_maintenance/runs/`, newest first by name.

A bounded number is kept, and nothing else depends on them. S3 and local files list a folder in the
order of its names, so that a listing that is cut short lacks the oldest. Documents are input like
everything in storage: one that is too large, or is no record, is counted and passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from pydantic import ValidationError

from memwal.errors import AlreadyExists, Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.model import Checkpoint, Cursor, StoredFile, VersionManifest
from memwal.ports import Objects
from memwal.report import RunRecord
from memwal.threads import side_by_side

RECORD_BYTES_MAX = 64 * 1024
_LISTED_MAX = 5000
_SAME_MOMENT_MAX = 10
_READERS_MAX = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRuns:
    """Run records, newest first, and the files among them that could not be read."""

    records: tuple[RunRecord, ...] = ()
    unreadable_files: tuple[str, ...] = ()

    @property
    def unreadable(self) -> int:
        """How many could not be read."""
        return len(self.unreadable_files)


class StoredRunRecords:
    """What ran on one table."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def add(self, record: RunRecord) -> None:
        """Store a record. One that is there already is left as it is.

        Jobs of one run may end in the same millisecond: the later one's name says a later one.
        Raises ValueError for a record that is too large to read back.
        """
        data = record.model_dump_json(indent=1).encode()
        if len(data) > RECORD_BYTES_MAX:
            raise ValueError(f"a run record of {len(data)} bytes; at most {RECORD_BYTES_MAX}")
        for later in range(_SAME_MOMENT_MAX):
            path = record_path(record, later)
            try:
                self._objects.put_if_absent(path, data)
                return
            except AlreadyExists:
                if self._objects.get(path, RECORD_BYTES_MAX) == data:
                    return  # this very record, whose reply was lost
        raise MemWalError(f"{_SAME_MOMENT_MAX} records of run {record.run_id} end at one time")

    def newest(self, limit: int) -> FoundRuns:
        """The newest `limit` by the time they finished: one listing, and one read each."""
        listed = self._list()[:limit]
        found = side_by_side(self._read, listed, _READERS_MAX)
        return FoundRuns(
            records=tuple(f for f in found if isinstance(f, RunRecord)),
            unreadable_files=tuple(
                info.path for info, f in zip(listed, found, strict=True) if f == "unreadable"
            ),
        )

    def prune(self, kept_max: int, *, slack: int = 0) -> int:
        """Delete the oldest beyond `kept_max`, if more than `slack` are; returns how many went.

        What can't be deleted is found again next time.
        """
        listed = self._list()
        if len(listed) <= kept_max + slack:
            return 0
        return self._objects.delete(info.path for info in listed[kept_max:]).deleted

    def is_unreadable(self, info: StoredFile) -> bool:
        """Whether a record's file is no record that this build can read."""
        return self._read(info) == "unreadable"

    def _list(self) -> Sequence[StoredFile]:
        """Records by name, newest first; other files are passed over, and never deleted."""
        below = f"{layout.RUNS}/"
        listed = islice(self._objects.list(layout.RUNS), _LISTED_MAX)
        named = [
            info
            for info in listed
            if layout.parse_run_record_name(info.path.removeprefix(below)) is not None
        ]
        return sorted(named, key=lambda info: info.path)

    def _read(self, info: StoredFile) -> RunRecord | str:
        """The record, or `unreadable`, or `gone`."""
        if not 0 < info.size_bytes <= RECORD_BYTES_MAX:
            return "unreadable"
        try:
            data = self._objects.get_range(info.path, 0, info.size_bytes)
            record = RunRecord.model_validate_json(data)
        except Missing:
            return "gone"  # pruned since it was listed
        except (Corruption, ValidationError):
            return "unreadable"
        name = info.path.rpartition("/")[2]
        own = layout.parse_run_record_name(name) == layout.name_run(record.run_id)
        return record if own else "unreadable"


def list_later_versions(
    newest: VersionManifest,
    records: Sequence[RunRecord],
    checkpoints: Sequence[Checkpoint],
    cursors: Sequence[Cursor],
) -> dict[str, int]:
    """Versions above the newest that is there, by what names them; `records` are newest first.

    What is older than the newest version proves nothing: it may be of before a restore, or of a
    table that was made again at this address, where versions went back.
    """
    named = [(f"checkpoint {c.name!r}", c.version, c.version_at_nanos) for c in checkpoints]
    named += [(f"cursor {c.name!r}", c.version, c.moved_at_nanos) for c in cursors]
    record = next((record for record in records if record.version_after is not None), None)
    if record is not None:
        at_nanos = round(datetime.fromisoformat(record.finished_at).timestamp() * 1e9)
        named.append((f"the record of run {record.run_id}", record.version_after or 0, at_nanos))
    return {
        what: version
        for what, version, at_nanos in named
        if version > newest.version and at_nanos > newest.timestamp_nanos
    }


def record_path(record: RunRecord, later_millis: int = 0) -> str:
    """Where a record is stored."""
    millis = round(datetime.fromisoformat(record.finished_at).timestamp() * 1000) + later_millis
    return layout.run_record_path(millis * 10**6, layout.name_run(record.run_id))
