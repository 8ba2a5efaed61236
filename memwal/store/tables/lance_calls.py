"""Calls into Lance that may commit, what its errors mean, and its metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

from memwal.errors import LostRace, MemWalError, StoreUnavailable, Unsupported
from memwal.store.objects.full_disk import add_hint

T = TypeVar("T")

# A place in Lance's source. The lookbehind lets a match begin only at the start of a path, so that
# the search takes linear time.
_RUST_SOURCE = re.compile(r",? ?(?<![\w./@+~-])/[\w./@+~-]*\.rs:\d+(:\d+)?")


class Says(Enum):
    """What Lance's errors say, as far as it matters here: by the texts of pylance 14.0.2."""

    CONFLICT = (
        r"commit conflict|preempted by concurrent|too many concurrent writers|stale sstable|"
        r"incompatible transaction|concurrent modification|would orphan fragments"
    )
    CANT = r"invalid user input|not supported|not enough rows|unsupported"
    UNSUPPORTED = r"\Anot supported"
    """Retries won't help."""
    BAD_INPUT = r"invalid user input"
    BAD_REQUEST = (
        r"invalid user input|divide by zero|cast error|overflow|error applying filter|"
        r"query vector|query column|unsupported distance|not supported"
    )
    """The filter is at fault, or the query vector."""
    NO_VERSION = r"version not found"
    REWRITTEN = r"RewrittenIndex"
    """pylance can't show indexes that a compaction rewrote, and only that has any."""
    GONE = r"not found|no such file|does not exist|not a directory"
    DENIED = r"necessary privileges|403 forbidden|accessdenied"
    """Which says nothing about the file."""
    UNREACHED = r"permission denied|os error \d+|error performing \w+"
    DAMAGED = (
        r"encountered corrupt file|invalid range|failed to decode protobuf|(?<!sql )parser error|"
        r"unable to get record batches|reader producer terminated|in the protobuf field list|"
        r"invalid seek to a negative|task was aborted|task \d+ panicked|"
        r"get index statistics .* at line \d+ column \d+|"
        r"/lance-(?:file|encoding)/src/"
    )
    """What is stored can't be right. In words that are used for wrong requests, too, it is told by
    the place in Lance's source that says so. Another attempt won't help."""
    SEALED = r"is sealed"
    FENCED = r"fenced"
    CLAIMED = r"another writer claimed"
    FORMER_TYPE = r"is stored as .* and the schema declares"
    """Rows in a WAL have the type that a column had before `memwal schema` widened it."""
    BAD_WAL = r"WAL (entry|IPC|replay)"


_IN_ALL_LINES = (Says.CONFLICT, Says.DAMAGED)
ERRORS = (OSError, ValueError, RuntimeError)
"""What Lance raises, a panic aside."""


def says(error: BaseException, *any_of: Says) -> bool:
    """Whether an error of Lance's says one of these."""
    tidy, whole = tidy_text(error), str(error)
    return any(
        re.search(what.value, whole if what in _IN_ALL_LINES else tidy, re.IGNORECASE)
        for what in any_of
    )


def is_panic(error: BaseException) -> bool:
    """Whether Lance's Rust code panicked, as on torn files; in Python that is no `Exception`."""
    return type(error).__name__ == "PanicException"


def tidy_text(error: BaseException) -> str:
    """An error's first line, without places in Lance's source, and with advice for a full disk."""
    text = _RUST_SOURCE.sub("", str(error).split("\n", 1)[0]).strip()
    told = add_hint(text.replace("?.", "?")) or type(error).__name__
    return f"Lance panicked: {told}" if is_panic(error) else told


@contextmanager
def translated(
    explain: Callable[[BaseException], BaseException],
    kinds: tuple[type[BaseException], ...] = ERRORS,
) -> Iterator[None]:
    """Raise what `explain` makes of an error of Lance's, or of a panic; ours as they are."""
    try:
        yield
    except MemWalError:
        raise
    except BaseException as error:
        if isinstance(error, kinds) or is_panic(error):
            raise explain(error) from None
        raise


@contextmanager
def passed_over(*more: type[Exception]) -> Iterator[None]:
    """Go on behind the block after an error of Lance's, or a panic."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, (*ERRORS, *more)) and not is_panic(error):
            raise


def call_lance(call: Callable[[], T]) -> T:
    """Run a call into Lance that may commit, and raise memwal's errors for Lance's.

    Raises LostRace on a conflict, Unsupported for what Lance can't do, and StoreUnavailable for any
    other error, after which the commit may have landed all the same.
    """
    with translated(_as_ours, (Exception,)):
        return call()


def _as_ours(error: BaseException) -> MemWalError:
    text = tidy_text(error)
    if is_panic(error):
        return Unsupported("MW-E03", text)
    if says(error, Says.CONFLICT):
        return LostRace(text)
    if says(error, Says.CANT) or isinstance(error, NotImplementedError | TypeError | KeyError):
        return Unsupported("MW-E02", text)
    return StoreUnavailable(text)


def join_lance(meter_provider: Any) -> None:
    """Export Lance's metrics beside ours, under Lance's names, if this Lance has any."""
    try:
        from lance.otel import instrument_lance_metrics
    except ImportError:
        return
    instrument_lance_metrics(meter_provider)
