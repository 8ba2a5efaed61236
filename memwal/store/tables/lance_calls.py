"""Calls into Lance that may commit, and what their errors mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from memwal.errors import LostRace, MemWalError, StoreUnavailable, Unsupported
from memwal.store.tables.datasets import is_panic, tidy_text

T = TypeVar("T")

_CONFLICT = re.compile(
    r"commit conflict|preempted by concurrent|too many concurrent writers|"
    r"incompatible transaction|concurrent modification|would orphan fragments",
    re.IGNORECASE,
)
_CANT = re.compile(r"invalid user input|not supported|not enough rows|unsupported", re.IGNORECASE)


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
