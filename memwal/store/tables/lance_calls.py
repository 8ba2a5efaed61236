"""Calls into Lance that may commit, what its errors mean, and its metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from memwal.errors import LostRace, MemWalError, StoreUnavailable, Unsupported
from memwal.store.objects.full_disk import add_hint

T = TypeVar("T")

# A place in Lance's source. The lookbehind lets a match begin only at the start of a path, so that
# the search takes linear time.
_RUST_SOURCE = re.compile(r",? ?(?<![\w./@+~-])/[\w./@+~-]*\.rs:\d+(:\d+)?")

_CONFLICT = re.compile(
    r"commit conflict|preempted by concurrent|too many concurrent writers|"
    r"incompatible transaction|concurrent modification|would orphan fragments",
    re.IGNORECASE,
)
_CANT = re.compile(r"invalid user input|not supported|not enough rows|unsupported", re.IGNORECASE)

# What Lance says of bytes that it has read, and that can't be right; and where in its source it
# says so, in words that it uses for wrong requests, too.
_DAMAGED = re.compile(
    r"encountered corrupt file|invalid range|failed to decode protobuf|(?<!sql )parser error|"
    r"unable to get record batches|reader producer terminated|in the protobuf field list|"
    r"invalid seek to a negative|"
    r"/lance-(?:file|encoding)/src/",
    re.IGNORECASE,
)


def tells_of_damage(error: BaseException) -> bool:
    """Whether Lance's error is about what is stored, so that another attempt won't help."""
    return _DAMAGED.search(str(error)) is not None


def is_panic(error: BaseException) -> bool:
    """Whether Lance's Rust code panicked, as on torn files; in Python that is no `Exception`."""
    return type(error).__name__ == "PanicException"


def tidy_text(error: BaseException) -> str:
    """An error's first line, without places in Lance's source, and with advice for a full disk."""
    text = _RUST_SOURCE.sub("", str(error).split("\n", 1)[0]).strip()
    return add_hint(text.replace("?.", "?")) or type(error).__name__


def call_lance(call: Callable[[], T]) -> T:
    """Run a call into Lance that may commit, and raise memwal's errors for Lance's.

    Raises LostRace on a conflict, Unsupported for what Lance can't do, and StoreUnavailable for any
    other error, after which the commit may have landed all the same.
    """
    try:
        return call()
    except MemWalError:
        raise
    except Exception as error:
        raise _as_ours(error) from None
    except BaseException as panic:
        if not is_panic(panic):
            raise
        raise Unsupported("MW-E03", f"Lance panicked: {tidy_text(panic)}") from None


def _as_ours(error: Exception) -> MemWalError:
    text = tidy_text(error)
    if _CONFLICT.search(str(error)):
        return LostRace(text)
    if _CANT.search(text) or isinstance(error, NotImplementedError | TypeError | KeyError):
        return Unsupported("MW-E02", text)
    return StoreUnavailable(text)


def join_lance(meter_provider: Any) -> None:
    """Export Lance's metrics beside ours, under Lance's names, if this Lance has any."""
    try:
        from lance.otel import instrument_lance_metrics
    except ImportError:
        return
    instrument_lance_metrics(meter_provider)
