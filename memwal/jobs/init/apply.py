"""Makes the commits of `init`, each after a fresh look.

Nothing is remembered between them. The next look shows what a killed run left, and what others have
done meanwhile: it says what is left to do, or that the table has another MemWAL now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from memwal.errors import LostRace, MemWalError, StoreUnavailable, Unsupported
from memwal.jobs.init.plan import FoundTable, Step, plan_steps
from memwal.jobs.init.request import InitRequest
from memwal.model import ShardId
from memwal.ports import Steps, no_steps

if TYPE_CHECKING:
    from memwal.jobs.init.store import StoredInitTable

_ATTEMPTS_MAX = 10


@dataclass(frozen=True, kw_only=True)
class Initialiser:
    """Makes one table ready for MemWAL. `take_lease` is called before the first commit."""

    table: StoredInitTable
    take_lease: Callable[[], None]
    before_commit: Callable[[], None]
    before_repair: Callable[[], None]
    steps: Steps = no_steps

    def run(self, request: InitRequest) -> tuple[FoundTable, tuple[Step, ...]]:
        """Do the steps that are left; returns the table afterwards, and the steps made here.

        If any were made, the returned table's `inherited` is the progress that was let go of.
        Raises what stops it, as `plan_steps` does, and what the ports raise.
        """
        found = self.table.read(request)
        if not plan_steps(found, request):
            return found, ()
        self.take_lease()
        made: list[Step] = []
        let_go: Mapping[ShardId, range] = {}
        failed: tuple[Step, MemWalError] | None = None
        for _ in range(_ATTEMPTS_MAX):
            found = self.table.read(request)
            left = plan_steps(found, request)
            if not left:
                return replace(found, inherited=let_go), tuple(made)
            step = left[0]
            if failed is not None and failed[0] is step:
                raise failed[1]
            self.before_commit()
            self.steps(step)
            try:
                self._commit(step, request, found)
            except LostRace:
                continue
            except (Unsupported, StoreUnavailable) as error:
                # Somebody else may have made the step meanwhile, or it landed and the reply was
                # lost.
                failed = step, error
                continue
            made.append(step)
            let_go = found.inherited
        raise LostRace(
            f"{found.view.uri}: others committed to the table each of {_ATTEMPTS_MAX} times; run "
            "again"
        )

    def _commit(self, step: Step, request: InitRequest, found: FoundTable) -> None:
        if step is Step.PRIMARY_KEY:
            self.table.set_primary_key(request.primary_key)
        elif step is Step.POLICY and request.row_policy is not None:
            self.table.put_policy(request.row_policy)
        elif step is Step.EXPIRE and request.expire is not None:
            self.table.put_expire(request.expire)
        elif step is Step.PROGRESS:
            self._let_go(found.inherited)
        else:
            self.table.initialize(request)

    def _let_go(self, inherited: Mapping[ShardId, range]) -> None:
        """Remove inherited progress from the MemWAL index.

        It is recorded first, so that nobody believes this progress in earlier versions, or after
        one of them is restored.

        The commit overwrites progress of other shards that was committed in between. So that is
        raised again, until nothing came in between. Merges wait while this run's claim holds. If it
        lapses, a merge may have built on the lowered progress, which then stays: what is pending is
        merged again.
        """
        merged = dict[ShardId, int]()
        self.table.name_adopted(inherited)
        self.before_commit()
        self.steps("let go")
        while between := self.table.let_go(inherited, merged):
            for shard_id, generation in chain.from_iterable(one.items() for one in between):
                if shard_id not in inherited:
                    merged[shard_id] = max(generation, merged.get(shard_id, 0))
            self.steps("raise again")
            self.before_repair()
