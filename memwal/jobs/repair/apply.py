"""Mends a table: looks, mends what can be mended, and looks again until nothing more can be.

It may be killed after any step, and is then simply run again: each step leaves a table that is no
worse than before, and what is left is found by the next look. What is replaced or moved away is
copied into quarantine first, and only if it is still what was judged. A shard that is set back has
its rows in the WAL, where whoever claims it next replays them; that is the last step here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memwal.errors import MemWalError, Refused
from memwal.jobs.repair.model import Damage, Effect, Replace
from memwal.jobs.repair.plan import find_damage
from memwal.jobs.verify.plan import Check
from memwal.ports import Steps, no_steps

if TYPE_CHECKING:
    from memwal.jobs.repair.store import StoredRepair

# So often the table is looked at again: mending one thing may show the next.
_ROUNDS_MAX = 8


@dataclass(kw_only=True)
class TableRepair:
    """Repairs one table. `first` and `last` are what the looks before and after found.

    `checks` are those of the last look; `mended` what was worked on, and the error that ended that,
    if any. `intend` writes down what is about to be mended.
    """

    uri: str
    store: StoredRepair
    take_lease: Callable[[], None]
    before_commit: Callable[[], None]
    confirm: Callable[[Sequence[Damage]], bool]
    intend: Callable[[Sequence[Damage]], None] = lambda damages: None
    steps: Steps = no_steps
    first: Sequence[Damage] = ()
    last: Sequence[Damage] = ()
    checks: Sequence[Check] = ()
    mended: list[tuple[Damage, MemWalError | None]] = field(default_factory=list)
    has_quarantined: bool = False

    def run(self, *, acts: bool) -> None:
        """Mend what can be mended; unless it `acts`, only look.

        Raises Refused if shards are not to be claimed, LeaseHeld, and what a look raises.
        """
        self.first = self.last = self._find()
        if not acts:
            return
        if self._mend([d for d in self.first if d.frees_lease]):
            self.last = self._find()
        if not any(damage.effects for damage in self.last):
            return
        self.take_lease()
        for _ in range(_ROUNDS_MAX):
            self.last = self._find()
            # The evidence is another one after something came from a backup.
            tried = {(d.name, d.evidence) for d, _ in self.mended}
            next_ = [d for d in self.last if d.effects and (d.name, d.evidence) not in tried]
            self._ask(next_)
            if not self._mend(next_):
                return
        self.last = self._find()

    def _find(self) -> Sequence[Damage]:
        evidence, backed_up = self.store.look(), self.store.backed_up
        self.checks, found = evidence.checks, find_damage(evidence)
        return found if backed_up is None else backed_up.mend(found)

    def _ask(self, damages: Sequence[Damage]) -> None:
        fencing = [damage for damage in damages if damage.fences]
        if fencing and not self.confirm(fencing):
            raise Refused("MW-R01", f"{self.uri}: not confirmed; no shard was claimed")

    def _mend(self, damages: Sequence[Damage]) -> bool:
        """Whether anything was tried; errors of one damage leave the others alone."""
        if damages:
            self.intend(damages)
        for damage in damages:
            error: MemWalError | None = None
            try:
                for effect in damage.effects:
                    self.before_commit()
                    self._do(effect)
            except MemWalError as caught:
                error = caught
            self.mended.append((damage, error))
        return bool(damages)

    def _do(self, effect: Effect) -> None:
        self.steps(type(effect).__name__)
        if isinstance(effect, Replace) and effect.digest is not None:
            self.store.quarantine(effect.path, effect.digest)
            self.has_quarantined = True
            self.steps("quarantined")
        self.store.apply(effect)
