"""The document of `memwal read`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SkipValidation

from memwal.report import Section


class ReadTable(Section):
    """The one table. `rows` is null with `output`; `--explain` has `explain` in their place."""

    table: str
    outcome: str
    error: str | None
    checkpoint: str | None
    merged_only: bool
    version: int
    consistency: str
    taken_at: str | None
    warnings: list[str]
    columns: list[dict[str, str]] | None = Field(default=None, alias="schema")
    num_rows: int | None = None
    rows: SkipValidation[list[dict[str, Any]] | None] = None
    output: str | None = None
    limit: int | None = None
    generations: int | None = None
    shards: int | None = None
    pruned_shards: int | None = None
    explain: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """What this kind of read tells, JSON-ready; rows are not copied, as there may be many."""
        names = {name: field.alias or name for name, field in type(self).model_fields.items()}
        return {names[name]: value for name, value in self if name in self.model_fields_set}


class ReadDocument(Section):
    """A read that succeeded. One that failed is a report, as of any job."""

    job: str
    outcome: str
    seconds: float
    run_id: str
    tables: list[ReadTable]

    def to_json(self) -> dict[str, Any]:
        """The document, JSON-ready. The run's id is at its end."""
        found = {**dict(self), "tables": [table.to_json() for table in self.tables]}
        found["run_id"] = found.pop("run_id")
        return found
