"""Caches what was read of generations, for the next read."""

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
    """A least-recently-used cache of things that never change, by unique names.

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
            self._things[name] = found  # now the most recently used
            return found[0]

    def keep(self, name: str, thing: T, size_bytes: int) -> None:
        """Keep a thing, and drop the least recently used ones while all are over `BYTES_MAX`."""
        with self._lock:
            self._bytes += size_bytes - self._things.pop(name, (None, 0))[1]
            self._things[name] = (thing, size_bytes)
            while self._bytes > BYTES_MAX:
                self._bytes -= self._things.pop(next(iter(self._things)))[1]

    def drop(self, name: str) -> None:
        """Drop what is kept under the name."""
        with self._lock:
            self._bytes -= self._things.pop(name, (None, 0))[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What reads with the same access to a store share: Lance's session, opened generations.

    `number` identifies it in the names of other things that are kept.
    """

    access: str
    session: Any
    number: int = field(default_factory=count(1).__next__)
    sources: Kept[Source] = field(default_factory=Kept)

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forget it for tables that are opened later, when the store can't be read in the block.

        Credentials that are in neither the options nor the environment may have expired.
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
    """What earlier reads with the same credentials and memory limit opened, or a new one."""
    remote = "://" in uri
    variables = [i for i in os.environ.items() if remote and i[0].startswith(_ENVIRONMENT)]
    access = repr((sorted(storage_options.items()), sorted(variables), memory_bytes_max))
    found = _OPENED.find(access)
    if found is None:
        memory = Memory(bytes_max=memory_bytes_max)
        found = Opened(access=access, session=new_session(memory))
        _OPENED.keep(access, found, BYTES_MAX // _ACCESSES_MAX)
    return found
