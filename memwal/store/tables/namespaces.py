"""Asks Lance namespaces where tables are, and for the credentials that open them.

A namespace's answer holds a location and storage options. With `expires_at_millis` among them the
credentials are vended: Lance asks for new ones itself, of the client that it is given; our own
requests ask through `renew`.
"""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from lance.namespace import (
    DescribeTableRequest,
    DirectoryNamespace,
    ListTablesRequest,
    RestNamespace,
)
from lance_namespace import errors as theirs

from memwal.clock import SystemClock
from memwal.config.names import suggest
from memwal.config.namespaces import OPTION, NamespacedTable
from memwal.errors import (
    BadCredentials,
    MemWalError,
    NotATable,
    StoreUnavailable,
    Unreachable,
    Unsupported,
    Usage,
)
from memwal.ports import Clock
from memwal.store.objects.base import WAITS, StoreLimits, limit_requests
from memwal.store.tables.lance_calls import tidy_text

EXPIRY = "expires_at_millis"
_OPENING = "storage."
_PAGES_MAX = 1_000
_RENEWED_SECONDS_BEFORE = 60.0
_SHOWN_CHARACTERS_MAX = 300
_KINDS = {"dir": DirectoryNamespace, "rest": RestNamespace}
_CREDENTIALS = {"access_key_id", "secret_access_key", "session_token", "token"}
_ABSENT = (theirs.TableNotFoundError, theirs.NamespaceNotFoundError)
_REFUSED = (theirs.PermissionDeniedError, theirs.UnauthenticatedError)

_clients: dict[object, Any] = {}
_silent_until: dict[str, float] = {}
_lock = threading.Lock()


def client_of(table: NamespacedTable) -> Any:
    """A client of the table's namespace, shared in this process. Raises Usage."""
    key = (os.getpid(), table.impl, frozenset(table.properties.items()))
    with _lock:
        if key not in _clients:
            with _explained(table, f"namespace {table.namespace}"):
                _clients[key] = _KINDS[table.impl](**table.properties)
        return _clients[key]


def locate(storage_options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The location of the table that these options name, and the options that open it.

    The namespace's options override configured ones; credentials of the two are never mixed.
    Raises NotATable, BadCredentials, StoreUnavailable; Unsupported where the namespace manages the
    table's versions: commits that do not go through it would be lost or seen by nobody.
    """
    table = NamespacedTable.decode(storage_options[OPTION])
    client = client_of(table)
    asked = DescribeTableRequest(id=list(table.id), vend_credentials=True)
    with _explained(table, table.name):
        found = _ask(table, lambda: client.describe_table(asked), storage_options)
    if found.managed_versioning:
        raise Unsupported(
            "MW-O07",
            f"{table.name}: namespace {table.namespace} manages the versions of this table "
            "(managed_versioning); memwal commits to the table's own folder, past it",
        )
    if not found.location:
        raise NotATable(f"{table.name}: namespace {table.namespace} tells no location of it")
    said = {**_own_options(table), **(found.storage_options or {})}
    names = {_short(name) for name in said}
    beaten = names | (_CREDENTIALS if names & _CREDENTIALS else set())
    kept = {k: v for k, v in storage_options.items() if _short(k) not in beaten}
    return found.location, {**kept, **said}


def renew(storage_options: Mapping[str, str]) -> dict[str, str]:
    """The table's storage options with new credentials. Raises what `locate` raises."""
    return locate(storage_options)[1]


class Renewed:
    """Storage options whose credentials are asked for again before they expire."""

    def __init__(self, storage_options: Mapping[str, str], clock: Clock) -> None:
        self._options = storage_options
        self._clock = clock
        self._lock = threading.Lock()
        self._until = self._end()

    def now(self) -> Mapping[str, str]:
        """Storage options that are valid now, without `OPTION`. Raises what `locate` raises."""
        with self._lock:
            if self._clock.now_nanos() / 1e9 >= self._until:
                self._options = renew(self._options)
                self._until = self._end()
            return {name: value for name, value in self._options.items() if name != OPTION}

    def _end(self) -> float:
        if OPTION not in self._options or EXPIRY not in self._options:
            return math.inf
        expiry, now = float(self._options[EXPIRY]) / 1000, self._clock.now_nanos() / 1e9
        return expiry - max(0.0, min(_RENEWED_SECONDS_BEFORE, (expiry - now) / 3))


def lance_arguments(storage_options: Mapping[str, str]) -> dict[str, Any]:
    """The arguments with which Lance opens a table's files, and renews credentials that expire."""
    options = {name: value for name, value in storage_options.items() if name != OPTION}
    if OPTION not in storage_options or EXPIRY not in options:
        return {"storage_options": options or None}
    table = NamespacedTable.decode(storage_options[OPTION])
    return {
        "storage_options": options,
        "namespace_client": client_of(table),
        "table_id": list(table.id),
    }


def list_names(glob: NamespacedTable) -> list[str]:
    """Names of all tables in a glob's namespace, sorted, except names with a slash or a dot."""
    names = _list_tables(glob, list(glob.id[:-1]))
    return sorted(name for name in names if not set("./") & set(name))


def _list_tables(table: NamespacedTable, parent: list[str]) -> Iterator[str]:
    client, token = client_of(table), None
    for _ in range(_PAGES_MAX):
        with _explained(table, table.name, near=False):
            asked = ListTablesRequest(id=parent, page_token=token)
            page = _ask(table, partial(client.list_tables, asked))
        yield from page.tables
        token = page.page_token
        if not token:
            return
    raise StoreUnavailable(f"{table.name}: the namespace's list has no end")


def _ask(
    table: NamespacedTable,
    request: Callable[[], Any],
    storage_options: Mapping[str, str] | None = None,
) -> Any:
    """The answer to a request, with a deadline, as clients of namespaces have none.

    Raises Unreachable once the wait for stores has passed, and for as long again at once, for every
    request to that namespace. The thread of a request without an answer ends with the process.
    """
    clock, answers = SystemClock(), queue.SimpleQueue[tuple[Any, BaseException | None]]()
    seconds_max = limit_requests(storage_options or {}, StoreLimits()).retry_seconds_max
    silent = f"{table.name}: the namespace gave no answer for {seconds_max:.0f} s"
    if clock.monotonic_seconds() < _silent_until.get(table.namespace, -math.inf):
        raise Unreachable(silent)

    def run() -> None:
        try:
            answers.put((request(), None))
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            answers.put((None, error))

    threading.Thread(target=run, daemon=True, name="memwal-namespace").start()
    try:
        answer, error = answers.get(timeout=seconds_max)
    except queue.Empty:
        _silent_until[table.namespace] = clock.monotonic_seconds() + seconds_max
        raise Unreachable(silent) from None
    if error is not None:
        raise error
    return answer


@contextmanager
def _explained(table: NamespacedTable, what: str, *, near: bool = True) -> Iterator[None]:
    try:
        with WAITS.watch(what, "the namespace is asked"):
            yield
    except MemWalError:
        raise
    except _ABSENT as error:
        meant = _find_near(table) if near else ""
        raise NotATable(f"{what}: {_tell(error, table)}{meant}") from None
    except _REFUSED as error:
        raise BadCredentials(f"{what}: the namespace refuses: {_tell(error, table)}") from None
    except theirs.UnsupportedOperationError as error:
        raise Unsupported("MW-O08", f"{what}: the namespace can't: {_tell(error, table)}") from None
    except (theirs.InvalidInputError, ValueError) as error:
        raise Usage(f"{what}: {_tell(error, table)}") from None
    except (theirs.LanceNamespaceError, OSError, RuntimeError) as error:
        raise Unreachable(f"{what}: the namespace fails: {_tell(error, table)}") from None


def _find_near(table: NamespacedTable) -> str:
    try:
        return suggest(table.id[-1], list_names(table))
    except MemWalError:
        return ""


def _tell(error: Exception, table: NamespacedTable) -> str:
    """The text of a namespace's error, with the table's properties masked that it may quote."""
    text = tidy_text(error)
    for name, value in table.properties.items():
        if name not in ("uri", "root", "delimiter") and len(value) > 3:
            text = text.replace(value, "***")
    return text[:_SHOWN_CHARACTERS_MAX]


def _own_options(table: NamespacedTable) -> dict[str, str]:
    """The options by which a folder's own files are opened: those of its tables, too."""
    found = table.properties.items() if table.impl == "dir" else ()
    return {k.removeprefix(_OPENING): v for k, v in found if k.startswith(_OPENING)}


def _short(name: str) -> str:
    return name.lower().removeprefix("aws_")
