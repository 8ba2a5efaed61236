"""The file of rows that were set aside: what `--bad-rows` names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memwal.errors import Usage
from memwal.run.whole_file import whole_file
from memwal.store.ingest_records import WHOLE, PlanRecord, RejectRecord, Round


class RejectsFile:
    """A local file of JSON lines. What other ingests set aside stays in it.

    It is written from what an ingest's records have: whole, however many runs it took.
    """

    def __init__(self, place: str) -> None:
        """Raises Usage where there can be no such file, or is another one."""
        self._path = Path(place)
        if "://" in place:
            raise Usage(f"--bad-rows {place}: writes local files only")
        if not self._path.parent.is_dir():
            raise Usage(f"--bad-rows {place}: there is no folder {self._path.parent}")
        self._read()

    def update(self, found: Round, plan: PlanRecord) -> None:
        """Put what a round set aside in the place of what is there of it. Raises Usage."""
        paths = (*plan.rejects, *found.read_progress(WHOLE).rejects)
        if paths:
            whose = {"table": found.uri, "ingest": "/".join(found.folder.split("/")[-2:])}
            self._replace(whose, found.read_rejects(paths))

    def _replace(self, whose: Mapping[str, str], rejects: Iterable[RejectRecord]) -> None:
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
