"""The interface of every opened read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import pyarrow as pa

from memwal.model import SharedKey
from memwal.read.plan.request import DISTANCE, SCORE
from memwal.read.plan.sources import ReadPlan
from memwal.read.store.sources import Base, Batches, Listed, Rows, trim


class OpenRead(ABC):
    """One opened read; each `start` reads again."""

    def __init__(self, plan: ReadPlan, base: Base, schema: pa.Schema) -> None:
        """`schema` is the base's. Raises Usage for a filter that Lance does not take."""
        self._plan = plan
        self._base = base
        self._scanned = pa.schema([schema.field(name) for name in plan.scanned])
        self._rows = Rows(schema=self._scanned, predicate=plan.predicate)
        self.warnings: Sequence[str] = ()
        shown = list(self._scanned)[: len(plan.columns)]
        if plan.nearest is not None:
            shown.append(pa.field(DISTANCE, pa.float32()))
        if plan.search is not None:
            shown.append(pa.field(SCORE, pa.float32()))
        self.schema = pa.schema(shown, metadata=schema.metadata)
        if plan.filter is not None:
            # By itself, so that its parentheses are its own.
            base.explain_scan(Rows(schema=self._scanned, predicate=plan.filter))

    def start(self) -> Batches:
        """The rows, in `schema`, in no promised order; a search gives the best first.

        Which rows win is decided before this returns, and `warnings` are set then; payload is read
        as it is consumed. Raises Missing when something that the plan names is gone,
        before this returns or later; Usage for a request that Lance refuses; Refused, Corruption,
        StoreUnavailable.
        """
        self.warnings = ()
        if self._plan.limit == 0:
            return iter(())
        return trim(self._read(), self.schema, self._plan.limit)

    @property
    @abstractmethod
    def way(self) -> str:
        """How the read goes about it, for people."""

    @abstractmethod
    def _read(self) -> Batches:
        """The rows, perhaps with other columns and more of them."""

    @abstractmethod
    def explain_plans(self) -> tuple[str, Mapping[Listed, str | None]]:
        """Lance's plans: for the base, and for each generation.

        None where Lance scans a copy in memory, or nothing. Raises Usage, Missing.
        """

    @abstractmethod
    def list_own_indexes(self) -> dict[Listed, frozenset[str]]:
        """Names of the indexes that each generation has."""

    def _warn(self, shared: SharedKey | None) -> None:
        if shared is not None:
            self.warnings = (f"{self._plan.uri}: {shared}",)
