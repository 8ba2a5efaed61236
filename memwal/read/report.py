"""The documents of `memwal read` and `memwal changes`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SkipValidation

from memwal.report import CursorReport, Section


class _TableOfRows(Section):
    """A table, with rows of it. `rows` is null with `output`."""

    table: str
    outcome: str
    error: str | None
    columns: list[dict[str, str]] | None = Field(default=None, alias="schema")
    num_rows: int | None = None
    rows: SkipValidation[list[dict[str, Any]] | None] = None
    output: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What is known of it, JSON-ready; rows are not copied, as there may be many."""
        names = {name: field.alias or name for name, field in type(self).model_fields.items()}
        return {
            names[name]: value.to_json() if isinstance(value, Section) else value
            for name, value in self
            if name in self.model_fields_set
        }


class ReadTable(_TableOfRows):
    """The one table. `rows` is null with `output`; `--explain` has `explain` in their place.

    Rows that are older than `expired_before` are left out; it is null where rows do not expire.
    `unread_wal_entries` hold rows in no generation, which only `--with-wal` reads; null where
    nobody looked.
    """

    checkpoint: str | None
    merged_only: bool
    version: int
    consistency: str
    taken_at: str | None
    warnings: list[str]
    limit: int | None = None
    expired_before: str | None = None
    generations: int | None = None
    shards: int | None = None
    pruned_shards: int | None = None
    unread_wal_entries: int | None = None
    explain: dict[str, Any] | None = None


class ChangesTable(_TableOfRows):
    """The changes of the one table after version `since`, up to `until`.

    Rows have `_change`, `_version` and `_time`, then the columns. `counts` are of all changes, even
    if a limit leaves rows out. After `--commit` and `--drop` there is the cursor alone.
    """

    cursor: CursorReport | None = None
    since: int | None = None
    until: int | None = None
    counts: dict[str, int] | None = None


class _Document(Section):
    """One that succeeded. One that failed is a report, as of any job."""

    job: str
    outcome: str
    seconds: float
    run_id: str
    tables: list[Any]

    def to_json(self) -> dict[str, Any]:
        """The document, JSON-ready. The run's id is at its end."""
        found = {**dict(self), "tables": [table.to_json() for table in self.tables]}
        found["run_id"] = found.pop("run_id")
        return found


class ReadDocument(_Document):
    """A read that succeeded. One that failed is a report, as of any job."""

    tables: list[ReadTable]


class ChangesDocument(_Document):
    """Changes that could be told. Where they could not, there is a report, as of any job."""

    tables: list[ChangesTable]
