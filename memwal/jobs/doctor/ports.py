"""What `apply` asks for: a folder to try things in, and where it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from memwal.ports import Objects


@runtime_checkable
class TellsTime(Protocol):
    """A store whose replies have the time, besides what its lists say of objects."""

    @property
    def told_nanos(self) -> int | None:
        """The time in the reply to the last put; None where there was none."""
        ...


class Scratch(Protocol):
    """A folder that is this run's alone."""

    @property
    def objects(self) -> Objects:
        """The folder."""
        ...

    def prove_put_if_absent(self) -> None:
        """As before a table's first write. Raises Unsupported for a store that lacks it."""
        ...

    def use_lance(self) -> None:
        """Make a tiny table with Lance, append to it, and read it. Raises Unsupported."""
        ...

    def remove(self, paths: Iterable[str]) -> int:
        """Delete the folder, what was put as `paths` included; how much is left."""
        ...

    def remove_leftovers(self) -> None:
        """Delete the folders of earlier runs that were killed. What can't go stays."""
        ...
