"""The table names that globs over Lance namespaces stand for, listed again now and then."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

from memwal.config.names import ListNames
from memwal.config.namespaces import NamespacedTable
from memwal.errors import MemWalError, StoreUnavailable, unexpected
from memwal.ports import Clock


@dataclass(kw_only=True, slots=True)
class _Listed:
    """The last listing for a glob; `began` is when it began, and it may still be `under_way`."""

    glob: NamespacedTable
    names: list[str]
    began: float
    under_way: bool = False
    problem: MemWalError | None = None


class StoredNames:
    """The names beside each glob as last listed; they are listed again every `every_seconds`.

    Each listing has a thread of its own. One that a namespace never answers holds up nobody, and
    ends with the process; until it ends, no other listing for its glob begins.
    """

    def __init__(self, list_names: ListNames, clock: Clock, *, every_seconds: float = 60.0) -> None:
        """`list_names` asks the namespace, with one request for each page of its answer."""
        self.every_seconds = every_seconds
        self._list_names = list_names
        self._clock = clock
        self._listed: dict[str, _Listed] = {}
        self._ended: queue.SimpleQueue[tuple[str, list[str] | MemWalError]] = queue.SimpleQueue()

    def find(self, glob: NamespacedTable) -> list[str]:
        """The names beside a glob; only the first call lists them itself. Raises MemWalError."""
        found = self._listed.get(glob.name)
        if found is None:
            now = self._clock.monotonic_seconds()
            names = self._list_names(glob)
            found = self._listed[glob.name] = _Listed(glob=glob, names=names, began=now)
        found.glob = glob  # its namespace may be configured anew
        return found.names

    def renew(self) -> bool:
        """Begin the listings that are due; returns whether any that ended found other names.

        The names listed last stay while a namespace can't be listed.
        """
        now, changed = self._clock.monotonic_seconds(), False
        for _ in range(self._ended.qsize()):
            name, end = self._ended.get()
            found = self._listed[name]
            found.under_way = False
            found.problem = end if isinstance(end, MemWalError) else None
            if isinstance(end, list) and end != found.names:
                found.names, changed = end, True
        for found in self._listed.values():
            if not found.under_way and now >= found.began + self.every_seconds:
                found.under_way, found.began = True, now
                self._begin(found.glob)
        return changed

    def find_problems(self) -> dict[str, MemWalError]:
        """Why names may be out of date, by glob."""
        now, longest = self._clock.monotonic_seconds(), self.every_seconds
        found = {name: one.problem for name, one in self._listed.items()}
        for name, one in self._listed.items():
            if one.under_way and now - one.began > longest:
                silent = f"{name}: the namespace has not answered for {longest:.0f} s"
                found[name] = StoreUnavailable(silent)
        return {name: problem for name, problem in found.items() if problem is not None}

    def _begin(self, glob: NamespacedTable) -> None:
        thread = threading.Thread(target=self._run, args=(glob,), daemon=True, name="memwal-names")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are to be had
            self._ended.put((glob.name, unexpected(error)))

    def _run(self, glob: NamespacedTable) -> None:
        try:
            self._ended.put((glob.name, self._list_names(glob)))
        except MemWalError as error:
            self._ended.put((glob.name, error))
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            self._ended.put((glob.name, unexpected(error)))
