"""Object stores whose calls go through a hook, and scripted faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import Lock
from typing import Literal, Protocol, TypeVar

from memwal.model import StoredFile
from memwal.ports import OBJECT_BYTES_MAX, DeleteResult, Objects, RequestCounts

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One line of a script: what happens at the nth call that matches.

    `operation` and `path` are fnmatch patterns (`put*`, `*/manifest/*`); a delete matches when any
    of its paths does. `nth` counts from 1 among this fault's own matches; None is every one.
    `hook` runs first, then `error` is raised if there is one. With `when="after"` the call takes
    effect before that, so an error stands for a lost reply.
    """

    operation: str
    path: str = "*"
    nth: int | None = 1
    when: Literal["before", "after"] = "before"
    error: Exception | None = None
    hook: Callable[[], None] | None = None

    def matches(self, call: Call) -> bool:
        """Whether `nth` counts this call."""
        return fnmatchcase(call.operation, self.operation) and any(
            fnmatchcase(path, self.path) for path in call.paths
        )

    def strike(self) -> None:
        """Run the hook and raise the error."""
        if self.hook is not None:
            self.hook()
        if self.error is not None:
            raise self.error


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of an Objects: the method's name, the paths it names, and what it writes."""

    operation: str
    paths: tuple[str, ...]
    data: bytes | None = None


class CallHook(Protocol):
    """Decides about every call of a HookedObjects."""

    def __call__(self, call: Call, effect: Callable[[], T]) -> T:
        """Act before and after the call, which `effect()` makes.

        The return value is the call's answer. An error raised in place of `effect()` means that the
        call had no effect; one raised after it stands for a lost reply.
        """
        ...


class HookedObjects:
    """An Objects whose every call goes through a hook; a listing is read completely at the call."""

    def __init__(self, inner: Objects, hook: CallHook) -> None:
        self._inner = inner
        self._hook = hook

    @property
    def uri(self) -> str:
        """The wrapped store's address."""
        return self._inner.uri

    @property
    def store(self) -> str:
        """The wrapped store's."""
        return self._inner.store

    @property
    def counts(self) -> RequestCounts:
        """The wrapped store's counts."""
        return self._inner.counts

    @property
    def page_objects(self) -> int:
        """The wrapped store's."""
        return self._inner.page_objects

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """List everything at once; the hook sees the call, not the iteration."""
        call = Call(operation="list", paths=(prefix,))
        return iter(self._hook(call, lambda: tuple(self._inner.list(prefix))))

    def list_folders(self, prefix: str) -> Sequence[str]:
        """As the wrapped store."""
        return self._call("list_folders", prefix, lambda: self._inner.list_folders(prefix))

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """As the wrapped store."""
        return self._call("get", path, lambda: self._inner.get(path, size_bytes_max))

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """As the wrapped store."""
        return self._call("get_range", path, lambda: self._inner.get_range(path, start, end))

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """As the wrapped store."""
        return self._call("get_tail", path, lambda: self._inner.get_tail(path, size_bytes_max))

    def exists(self, path: str) -> bool:
        """As the wrapped store."""
        return self._call("exists", path, lambda: self._inner.exists(path))

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the wrapped store."""
        self._call("put_if_absent", path, lambda: self._inner.put_if_absent(path, data), data)

    def put(self, path: str, data: bytes) -> None:
        """As the wrapped store."""
        self._call("put", path, lambda: self._inner.put(path, data), data)

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """As the wrapped store."""
        wanted = tuple(paths)
        call = Call(operation="delete", paths=wanted)
        return self._hook(call, lambda: self._inner.delete(wanted))

    def _call(
        self, operation: str, path: str, effect: Callable[[], T], data: bytes | None = None
    ) -> T:
        return self._hook(Call(operation=operation, paths=(path,), data=data), effect)


class FaultyObjects(HookedObjects):
    """An Objects with a script of faults. `calls` has every (operation, path) in order."""

    def __init__(self, inner: Objects, *faults: Fault) -> None:
        super().__init__(inner, self._run_script)
        self._faults = faults
        self._matches = [0] * len(faults)
        self._lock = Lock()
        self.calls: list[tuple[str, str]] = []

    def _run_script(self, call: Call, effect: Callable[[], T]) -> T:
        due = self._find_due(call)
        for fault in due:
            if fault.when == "before":
                fault.strike()
        result = effect()
        for fault in due:
            if fault.when == "after":
                fault.strike()
        return result

    def _find_due(self, call: Call) -> Sequence[Fault]:
        due = []
        with self._lock:
            self.calls += [(call.operation, path) for path in call.paths]
            for at, fault in enumerate(self._faults):
                if fault.matches(call):
                    self._matches[at] += 1
                    if fault.nth in (None, self._matches[at]):
                        due.append(fault)
        return due
