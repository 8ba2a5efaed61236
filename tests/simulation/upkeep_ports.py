"""The ports that upkeep needs besides: fragments to rewrite, and shards to claim for a rescue."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from memwal.errors import LostRace, Missing
from memwal.indexes import FragmentFacts
from memwal.jobs.compaction.apply import RewrittenFragments
from memwal.jobs.compaction.plan import (
    AgedFragment,
    CompactionLimits,
    CompactionTask,
    TableFragments,
)
from memwal.rows.expire import Horizon
from tests.simulation.lake import Lake, Version
from tests.simulation.row_rules import is_older
from tests.simulation.sim_ports import SimStores

T = TypeVar("T")


@dataclass(frozen=True)
class SimCompactionTable:
    """The CompactionTable port."""

    stores: SimStores

    def fragments(self, version: int) -> TableFragments:
        def look() -> TableFragments:
            each = self._at(version).fragments.items()
            facts = (FragmentFacts(fragment_id=f, rows=rows) for f, rows in each)
            return TableFragments(version=version, each=frozenset(facts))

        return self._step(f"fragments of {version}", look)

    def plan(self, version: int, limits: CompactionLimits) -> Sequence[CompactionTask]:
        """Neighbours below the target that the same indexes cover."""

        def look() -> list[CompactionTask]:
            seen = self._at(version)
            small = [
                (tuple(sorted(n for n, known in seen.covered.items() if f in known)), f, rows)
                for f, rows in sorted(seen.fragments.items())
                if rows < limits.target_rows_per_fragment
            ]
            groups = [list(found) for _, found in groupby(small, key=lambda entry: entry[0])]
            return [
                CompactionTask(
                    version=version,
                    fragment_ids=tuple(f for _, f, _ in group),
                    file_bytes=0,
                    data="",
                )
                for group in groups
                if len(group) > 1
            ]

        return self._step(f"plan compaction of {version}", look)

    def find_aged(self, version: int, horizon: Horizon) -> Sequence[AgedFragment]:
        """A fragment is as large as what is left of it."""

        def look() -> list[AgedFragment]:
            seen = self._at(version)
            aged = Counter(seen.rows[key][1] for key in self._find_expired(seen, horizon))
            return [
                AgedFragment(rows=seen.fragments[f], deleted_rows=0, expired_rows=rows)
                for f, rows in aged.items()
            ]

        return self._step(f"find expired rows of {version}", look)

    def purge(self, version: int, horizon: Horizon) -> int:
        """Delete them, unless one of them was touched since."""

        def delete() -> int:
            gone = self._find_expired(self._at(version), horizon)
            self._lake.merge(version, {}, gone, {})
            return len(gone)

        return self._step(f"purge on {version}", delete)

    @staticmethod
    def _find_expired(seen: Version, horizon: Horizon) -> frozenset[int]:
        before = horizon.before.timestamp()
        return frozenset(k for k, (number, _) in seen.rows.items() if is_older(number, before))

    def rewrite(self, task: CompactionTask) -> RewrittenFragments:
        """What is written is in no version yet, so there is nothing to keep but what it was of."""

        def read() -> RewrittenFragments:
            self._at(task.version)
            data = json.dumps({"version": task.version, "file": next(self._lake.file_numbers)})
            return RewrittenFragments(fragment_ids=task.fragment_ids, file_bytes=0, data=data)

        return self._step(f"rewrite {len(task.fragment_ids)} fragments of {task.version}", read)

    def _at(self, version: int) -> Version:
        try:
            return self._lake.version(version)
        except Missing as error:
            raise LostRace(str(error)) from None

    def commit(self, rewritten: Sequence[RewrittenFragments]) -> None:
        """Two versions; when the second is refused, the first is there all the same."""
        read = min(int(json.loads(r.data)["version"]) for r in rewritten)
        groups = [frozenset(r.fragment_ids) for r in rewritten]

        def rewrite() -> None:
            self._lake.rewrite(read, groups)
            self._lake.rewritten |= {r.data for r in rewritten}

        self._step("reserve fragments", self._lake.reserve)
        self._step(f"compaction on {read}", rewrite)

    def has_landed(self, rewritten: Sequence[RewrittenFragments]) -> bool:
        """By the numbers of the files."""
        files = {r.data for r in rewritten}
        return self._step("look for files", lambda: bool(files & self._lake.rewritten))

    @property
    def _lake(self) -> Lake:
        return self.stores.lake

    def _step(self, what: str, effect: Callable[[], T]) -> T:
        return self.stores.actor.step(what, effect)
