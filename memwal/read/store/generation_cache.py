"""What was read of generations, for the next read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any, Generic, TypeVar

from memwal.errors import BadCredentials, StoreUnavailable
from memwal.rows.memory import Memory
from memwal.store.tables.datasets import new_session
from memwal.store.tables.generations import Source

T = TypeVar("T")

BYTES_MAX = 64 * 1024 * 1024
_ACCESSES_MAX = 4
# A process may be given other credentials in these.
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_")


class Kept(Generic[T]):
    """Things that never change, by names that stand for nothing else; what is used stays longest.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._things: dict[str, tuple[T, int]] = {}
        self._bytes = 0
        self._lock = Lock()

    def find(self, name: str) -> T | None:
        """What is kept under the name."""
        with self._lock:
            found = self._things.pop(name, None)
            if found is None:
                return None
            self._things[name] = found  # the last to go
            return found[0]

    def keep(self, name: str, thing: T, size_bytes: int) -> None:
        """Keep it, and let go of what was used longest ago where all is too large."""
        with self._lock:
            self._bytes += size_bytes - self._things.pop(name, (None, 0))[1]
            self._things[name] = (thing, size_bytes)
            while self._bytes > BYTES_MAX:
                self._bytes -= self._things.pop(next(iter(self._things)))[1]

    def drop(self, name: str) -> None:
        """Keep it no longer."""
        with self._lock:
            self._bytes -= self._things.pop(name, (None, 0))[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What all reads with the same access to a store share: Lance's session, opened generations.

    `number` stands for it in the names of what else is kept.
    """

    access: str
    session: Any
    number: int = field(default_factory=count(1).__next__)
    sources: Kept[Source] = field(default_factory=Kept)

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Leave none of it to tables that are opened later, where the store can't be read with it.

        Credentials may have expired that are in neither the options nor the environment.
        """
        try:
            yield
        except (BadCredentials, StoreUnavailable):
            _OPENED.drop(self.access)
            raise


_OPENED = Kept[Opened]()


def share_opened(
    uri: str, storage_options: Mapping[str, str], memory_bytes_max: int | None = None
) -> Opened:
    """What reads before this one have opened, if any had the same credentials, and limit."""
    remote = "://" in uri
    variables = [i for i in os.environ.items() if remote and i[0].startswith(_ENVIRONMENT)]
    access = repr((sorted(storage_options.items()), sorted(variables), memory_bytes_max))
    found = _OPENED.find(access)
    if found is None:
        memory = Memory(bytes_max=memory_bytes_max)
        found = Opened(access=access, session=new_session(memory))
        _OPENED.keep(access, found, BYTES_MAX // _ACCESSES_MAX)
    return found
