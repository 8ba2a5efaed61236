"""Reads what the garbage job decides by of ingests: what is staged, and who needs it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.jobs.garbage.model import IngestRound, StagedRows
from memwal.model import StoredFile
from memwal.ports import Objects

_PLAN = "plan.json"
_STAGED = "staged"


@dataclass(kw_only=True, slots=True)
class _Found:
    """The files of one round."""

    records: list[StoredFile] = field(default_factory=list)
    staged: dict[str, list[StoredFile]] = field(default_factory=dict)


class StoredIngests:
    """The rounds of every ingest of a table. Files that belong to none are not looked at."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def read(self) -> tuple[IngestRound, ...]:
        """All of them. What a round's documents say is read only where something is staged."""
        rounds: dict[tuple[str, int], _Found] = {}
        for info in self._objects.list(layout.INGESTS):
            _, _, ingest_id, *names = info.path.split("/")
            number = layout.parse_ingest_round(names[0]) if len(names) > 1 else None
            if number is None or not layout.is_ingest_id(ingest_id):
                continue
            found = rounds.setdefault((ingest_id, number), _Found())
            match names[1:]:
                case ["staged", run, _, *_]:
                    found.staged.setdefault(run, []).append(_stored_file(info))
                case _:
                    found.records.append(_stored_file(info))
        return tuple(
            self._told(ingest_id, number, found)
            for (ingest_id, number), found in sorted(rounds.items())
        )

    def _told(self, ingest_id: str, number: int, found: _Found) -> IngestRound:
        folder = layout.ingest_round_folder(ingest_id, number)
        listed = IngestRound(
            ingest_id=ingest_id,
            number=number,
            records=tuple(found.records),
            staged=tuple(
                StagedRows(path=f"{folder}/{_STAGED}/{run}", files=tuple(files))
                for run, files in sorted(found.staged.items())
            ),
            planned=any(file.path == f"{folder}/{_PLAN}" for file in found.records),
        )
        if not listed.staged:
            return listed
        try:
            return self._read(listed)
        except MemWalError as error:
            return replace(listed, problem=str(error))

    def _read(self, listed: IngestRound) -> IngestRound:
        # Imported when asked for: most tables have nothing staged, and it brings Arrow.
        from memwal.store.ingest_records import Round, is_finished

        stored = Round(self._objects, listed.ingest_id, listed.number, "")
        plan = stored.plan()
        if plan is None:
            # Listed, and gone since: the round has ended meanwhile.
            problem = "its plan vanished" if listed.planned else None
            return replace(listed, problem=problem)
        return replace(
            listed,
            planned=True,
            finished=is_finished(stored, plan),
            named=frozenset(path for staged in plan.staged or () for path in staged.files),
        )


def _stored_file(info: StoredFile) -> StoredFile:
    return StoredFile(
        path=info.path, size_bytes=info.size_bytes, modified_at_nanos=info.modified_at_nanos
    )
