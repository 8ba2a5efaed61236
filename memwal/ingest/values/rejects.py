"""The file of rows that were set aside (`--bad-rows`)."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from memwal.errors import Usage
from memwal.ingest.plan import normalise_source
from memwal.ingest.sources.paths import does_match
from memwal.run.process.whole_file import whole_file
from memwal.store.records.ingests import WHOLE, PlanRecord, RejectRecord, Round


class RejectsFile:
    """A local file of JSON lines; rows that other ingests set aside stay in it.

    It is written from an ingest's records, so it is complete however many runs the ingest took.
    """

    def __init__(self, place: str, sources: Iterable[str]) -> None:
        """Raise Usage when the file can't be written, holds something else, or is in `sources`."""
        self._path = Path(place)
        if "://" in place:
            raise Usage(f"--bad-rows {place}: writes local files only")
        if not self._path.parent.is_dir():
            raise Usage(f"--bad-rows {place}: there is no folder {self._path.parent}")
        if not os.access(self._path.parent, os.W_OK):  # checked early, not when rows are written
            raise Usage(f"--bad-rows {place}: {self._path.parent} can't be written to")
        self._read()
        self._check_apart(sources)

    def update(self, found: Round, plan: PlanRecord) -> None:
        """Replace the round's rows in the file by those it has set aside. Raises Usage."""
        paths = (*plan.rejects, *found.read_progress(WHOLE).rejects)
        if paths:
            whose = {"table": found.uri, "ingest": "/".join(found.folder.split("/")[-2:])}
            self._replace(whose, found.read_rejects(paths))

    def _check_apart(self, sources: Iterable[str]) -> None:
        """Raise Usage for a file that a later run would ingest."""
        path = self._path.resolve()
        hidden = path.name.startswith(("_", "."))  # folders and patterns skip such names
        places = [] if hidden else [place.parts for place in (path, *path.parents)]
        for source in sources:
            named = Path(normalise_source(source))
            asked = (named.resolve().parts, named.parts)
            within = any(place in asked or does_match(place, asked[1]) for place in places)
            if within or path.parts in asked:
                raise Usage(
                    f"--bad-rows {self._path}: lies in {source}, and would be a source of the next "
                    "run: put it elsewhere, or begin its name with _"
                )

    def _replace(self, whose: Mapping[str, str], rejects: Iterable[RejectRecord]) -> None:
        with self._lock():
            self._replace_locked(whose, rejects)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the folder, if it supports locks, against other processes that write the file."""
        folder = os.open(self._path.resolve().parent, os.O_RDONLY)
        try:
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _replace_locked(self, whose: Mapping[str, str], rejects: Iterable[RejectRecord]) -> None:
        before = self._read()
        rows = [{**whose, **reject.model_dump(mode="json")} for reject in rejects]
        after = [row for row in before if not whose.items() <= row.items()] + rows
        if after == before and self._path.exists():
            return
        try:
            with whole_file(self._path.resolve()) as out:
                for row in after:
                    out.write(f"{json.dumps(row)}\n".encode())
        except OSError as error:
            raise Usage(f"--bad-rows {self._path}: {error}") from None

    def _read(self) -> list[dict[str, Any]]:
        try:
            rows = [json.loads(line) for line in self._path.read_bytes().splitlines()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Usage(f"--bad-rows {self._path}: {error}") from None
        except ValueError:
            rows = [None]
        if not all(isinstance(row, dict) and {"table", "ingest"} <= row.keys() for row in rows):
            raise Usage(f"--bad-rows {self._path}: holds something else than rows set aside")
        return rows
