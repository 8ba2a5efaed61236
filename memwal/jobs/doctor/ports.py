"""The ports of `doctor`: a scratch folder to try a store in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from memwal.ports import Objects


@runtime_checkable
class TellsTime(Protocol):
    """A store whose replies have the time, besides the times of objects in listings."""

    @property
    def told_nanos(self) -> int | None:
        """The time in the reply to the last put; None if it had none."""
        ...


class Scratch(Protocol):
    """A folder that is this run's alone."""

    @property
    def objects(self) -> Objects:
        """The folder as an object store."""
        ...

    def prove_put_if_absent(self) -> None:
        """Prove put-if-absent, as before a table's first write; raises Unsupported without it."""
        ...

    def use_lance(self) -> None:
        """Make a tiny table with Lance, append to it, and read it. Raises Unsupported."""
        ...

    def remove(self, paths: Iterable[str]) -> int:
        """Delete the folder, with everything put at `paths`; returns how many objects are left."""
        ...

    def remove_leftovers(self) -> None:
        """Delete the folders of earlier, killed runs; what can't be deleted stays."""
        ...
