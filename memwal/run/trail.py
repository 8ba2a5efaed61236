"""Writes what a run does to a table into the table's audit trail, if one is configured.

A run that deletes writes what it is about to delete first, and does not begin where that fails:
each deletion is named in a document before it is made. What it came to follows at the end, as what
other runs did. A failure of that is a warning: it can't be undone any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from memwal.config import ResolvedTable
from memwal.config.namespaces import OPTION as NAMESPACE_OPTION
from memwal.errors import MemWalError, StoreUnavailable, find_code
from memwal.format import layout
from memwal.identity import find_version
from memwal.options import Kind, list_options
from memwal.ports import Clock
from memwal.report import AuditEntry, AuditItem, AuditLink, TableReport
from memwal.run.stores import Stores
from memwal.store.objects.opening import is_in_bucket, open_objects, same_place
from memwal.store.records.audit import ITEMS_PER_DOCUMENT_MAX, StoredTrail
from memwal.store.records.process import this_holder, this_task
from memwal.text import iso_time, mask_address

NOT_WRITTEN = "the audit trail lacks what this run did; it could not be written"
Report = TypeVar("Report", bound=TableReport)

# Numbers, switches and words that memwal knows. A text or a pair may be, or hold, a row's value.
_WRITTEN = frozenset(
    (Kind.SWITCH, Kind.EITHER, Kind.NUMBER, Kind.DURATION, Kind.SIZE, Kind.CHOICE, Kind.CHOICES)
)
_SHARDS = "shards"


@dataclass(kw_only=True)
class RunTrail:
    """What one job of a run writes into the trail of one table."""

    table: str
    """The table's address."""
    job: str
    run_id: str
    clock: Clock
    open_trail: Callable[[], StoredTrail]
    asked: Mapping[str, Any] = field(default_factory=dict)
    _intended: set[tuple[str, str]] = field(default_factory=set)
    _intents: list[int] = field(default_factory=list)

    @cached_property
    def trail(self) -> StoredTrail:
        """Where it writes. Raises Usage, Unsupported for an address that can't be."""
        return self.open_trail()

    @property
    def is_open(self) -> bool:
        """Whether an intent was written that no outcome closes yet."""
        return bool(self._intents)

    def requests(self) -> Mapping[str, int]:
        """The requests made to the trail's place so far, by kind."""
        return self.trail.objects.counts.as_dict() if "trail" in vars(self) else {}

    def intend(self, items: Sequence[AuditItem]) -> None:
        """Write down items before they go; what an earlier intent of this run names is left out.

        Raises StoreUnavailable when that fails, whatever the reason: then nothing may go.
        """
        new = [item for item in items if (item.action, item.path) not in self._intended]
        if not new:
            return
        try:
            for link in self._write({"phase": "intent"}, new):
                self._intents.append(link.number)
        except MemWalError as error:
            raise StoreUnavailable(
                f"the audit trail can't be written, so nothing of this was deleted: {error}"
            ) from error
        self._intended.update((item.action, item.path) for item in new)

    def finish(self, report: TableReport) -> AuditLink | None:
        """Write down what the run came to, if it did or intended anything. Raises MemWalError."""
        items = list(report.audited())
        if not items and not self._intents:
            return None
        outcome = {
            "phase": "outcome",
            "intents": tuple(self._intents),
            "outcome": report.outcome,
            "exit_code": report.exit_code,
            "error": find_code(report.error or "") or None,
            "version_before": report.version_before,
            "version_after": report.version_after,
        }
        links = list(self._write(outcome, items))
        self._intents.clear()
        return links[-1]

    def _write(self, facts: Mapping[str, Any], items: Sequence[AuditItem]) -> Iterator[AuditLink]:
        """Write documents, one by one: those before one that fails are there, and told of."""
        entry = AuditEntry(
            number=1,
            previous="",
            table=self.table,
            run_id=self.run_id,
            job=self.job,
            at=str(iso_time(self.clock.now_nanos(), "milliseconds")),
            holder=this_holder(),
            airflow=this_task(),
            memwal=find_version(),
            asked=dict(self.asked),
            **facts,
        )
        step = ITEMS_PER_DOCUMENT_MAX
        parts = [items[start : start + step] for start in range(0, max(1, len(items)), step)]
        for part in parts:
            yield self.trail.append(entry.model_copy(update={"more": part is not parts[-1]}), part)


def make_trail(
    table: ResolvedTable, stores: Stores, job: str, run_id: str, request: object = None
) -> RunTrail | None:
    """A table's trail; None where none is configured. Nothing is opened yet."""
    if table.settings.audit is None:
        return None
    return RunTrail(
        table=mask_address(stores.uri),
        job=job,
        run_id=run_id,
        clock=stores.clock,
        open_trail=lambda: open_trail(table, stores.uri, stores.clock),
        asked=describe_asked(request),
    )


def finish(trail: RunTrail | None, report: Report) -> Report:
    """Write down what a run did; returns the report, with a warning where that failed."""
    try:
        if trail is not None:
            trail.finish(report)
    except MemWalError as error:
        warnings = (*getattr(report, "warnings", ()), f"{NOT_WRITTEN}: {error}")
        return report.model_copy(update={"warnings": warnings})
    return report


def open_trail(table: ResolvedTable, uri: str, clock: Clock) -> StoredTrail:
    """The audit trail of a table whose settings name a place for it, and which is at `uri`."""
    options = {k: v for k, v in table.storage_options.items() if k != NAMESPACE_OPTION}
    objects = open_objects(str(table.settings.audit), options, clock)
    return StoredTrail(objects, _name_folder(uri, options))


def _name_folder(uri: str, storage_options: Mapping[str, str]) -> str:
    """One name for all spellings of a table's address; it outlives the table's folder."""
    if not is_in_bucket(uri):
        path = str(Path(uri).resolve())
        return layout.name_trail(path, path)
    found = same_place(uri, storage_options)
    root, places = cast(tuple[str, frozenset[tuple[str, str]]], found)
    return layout.name_trail(root, f"{root} {sorted(places)}")


def describe_asked(request: object) -> dict[str, Any]:
    """The options that were set, as far as no row's value can be among them."""
    if request is None:
        return {}
    found: dict[str, Any] = {}
    kind: Any = type(request)
    for declared in list_options(kind):
        value = getattr(request, declared.name)
        written = declared.kind in _WRITTEN or declared.name == _SHARDS
        if value != declared.default and value is not None:
            found[declared.name] = value if written else "given, and not written down"
    return found
