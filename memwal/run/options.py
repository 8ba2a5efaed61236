"""The options of every job, and the limits and the engine that follow from them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from memwal.clock import SystemClock
from memwal.config import RUN_ID_VARIABLE, ResolvedTable, make_settings
from memwal.errors import Usage
from memwal.options import list_settings
from memwal.report import RUN_ID
from memwal.rows.memory import Memory

if TYPE_CHECKING:
    from memwal.run.engines.pool import SharedEngines
    from memwal.run.lease import ChainLeases
    from memwal.run.stores import OpenedBefore

Limits = TypeVar("Limits")
Options = TypeVar("Options")


def choose_run_id(environment: Mapping[str, str] = os.environ) -> str:
    """The id for a run: `MEMWAL_RUN_ID`, or else a new one.

    Raises Usage when the variable's value is not a valid id.
    """
    given = environment.get(RUN_ID_VARIABLE, "")
    if not given:
        return SystemClock().new_id().replace("-", "")
    if not re.fullmatch(RUN_ID, given):
        raise Usage(
            f"{RUN_ID_VARIABLE}: expected at most 200 letters, digits and _.~:+@/=-, the first a "
            "letter or a digit"
        )
    return given


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of every job.

    `engines` and `leases`, when given, belong to the caller: a job uses them and does not end them.
    All jobs inside a run share its `run_id` (`for_job`), which log lines, run records, leases and
    reports carry.
    """

    tables: Sequence[ResolvedTable]
    engine: str | None = None
    master: str | None = None
    dry_run: bool = False
    lease: bool = True
    untested_lance_allowed: bool = False
    opened_before: OpenedBefore | None = None
    engines: SharedEngines | None = None
    leases: ChainLeases | None = None
    run_id: str = field(default_factory=choose_run_id)

    def for_job(
        self, kind: Callable[..., Options], tables: Sequence[ResolvedTable], **more: Any
    ) -> Options:
        """The options of a job inside this run, on `tables`; `more` are that job's own options."""
        common = {field.name: getattr(self, field.name) for field in fields(RunOptions)}
        return kind(**{**common, "tables": tables, **more})

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return not self.dry_run

    @property
    def asked_engine(self) -> str:
        """auto, spark or local; under spark-submit it is spark, unless a flag says otherwise."""
        if self.engine:
            return self.engine
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            return "spark"
        return self.shared_setting("engine") or "auto"

    def shared_setting(self, name: str) -> str | None:
        """A setting's value, if all tables that configure it agree on one; else None."""
        values = {value for t in self.tables if (value := getattr(t.settings, name))}
        return values.pop() if len(values) == 1 else None


def choose_limits(
    kind: type[Limits], table: ResolvedTable, request: object | None = None
) -> Limits:
    """Limits of a kind: a request overrides the configuration, which overrides the defaults."""
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    configured = {name: getattr(table.settings, name, None) for name in names}
    asked = {} if request is None else list_settings(request)
    chosen = {k: v for k, v in {**configured, **asked}.items() if k in names and v is not None}
    return kind(**chosen)


def share_memory(table: ResolvedTable, tables: int) -> ResolvedTable:
    """The table with its share of this process's memory when `tables` run concurrently."""
    whole = Memory(bytes_max=table.settings.memory_bytes_max)
    return table.with_settings(make_settings(memory_bytes_max=whole.share(tables).bytes_max))
