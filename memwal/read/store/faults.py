"""Translates Lance's errors in a read to ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa

from memwal.errors import Corruption, MemWalError, Missing, Refused, StoreUnavailable, Usage
from memwal.read.plan.request import Moment
from memwal.read.plan.sources import Incomplete
from memwal.store.tables.lance_calls import ERRORS, Says, is_panic, says, tidy_text

T = TypeVar("T")

_FAULTS = (*ERRORS, TypeError, KeyError, pa.ArrowException)


def guard(where: str, call: Callable[[], T]) -> T:
    """Run a call to Lance, and translate its errors.

    Raises Usage when the request is at fault, Missing for files that are gone, Corruption for torn
    ones, StoreUnavailable for any other error of Lance.
    """
    try:
        return call()
    except BaseException as error:  # a Rust panic in Lance is not an Exception
        raise _as_ours(where, error) from None


def guard_each(where: str, start: Callable[[], Iterator[T]]) -> Iterator[T]:
    """The items of `start`, with errors translated as in `guard` at any point."""
    items = guard(where, start)
    end = object()
    while (item := guard(where, lambda: next(items, end))) is not end:
        yield item  # type: ignore[misc]


def _as_ours(where: str, error: BaseException) -> BaseException:
    if isinstance(error, MemWalError) or not (isinstance(error, _FAULTS) or is_panic(error)):
        return error
    text = tidy_text(error)
    if is_panic(error) or says(error, Says.DAMAGED):
        return Corruption("MW-F01", f"{where}: can't be read: {text}")
    if says(error, Says.BAD_REQUEST) or isinstance(error, TypeError | KeyError):
        return Usage(f"{where}: {text}")
    if says(error, Says.GONE):
        return Missing(f"{where}: {text}")
    return StoreUnavailable(f"{where}: can't be read: {text}")


def explain_missing(error: MemWalError, moment: Moment) -> MemWalError:
    """The error for something gone that a read of that moment needs."""
    if isinstance(error, Incomplete):
        return error
    if moment.version is not None:
        return Refused(
            "MW-H02", f"{error}; what version {moment.version} needs is gone, read a later version"
        )
    if moment.checkpoint is not None:
        return Corruption(
            "MW-C07",
            f"{error}; checkpoint {moment.checkpoint.name!r} keeps it, so that whoever deleted it "
            "was not memwal",
        )
    return Corruption("MW-H03", f"{error}; it is listed and not merged, so its rows are lost")


def report_gone(
    batches: Iterator[pa.RecordBatch], moment: Moment, is_latest: Callable[[], bool]
) -> Iterator[pa.RecordBatch]:
    """The rows. Something that they need and that is gone is an error, which says what to do.

    What the latest version needs is collected once there is a later one: `is_latest` tells, after
    the fact, whether the one that is read still is the latest.
    """
    try:
        yield from batches
    except Missing as error:
        if moment.version is not None or moment.checkpoint is not None:
            raise explain_missing(error, moment) from None
        if is_latest():
            raise Corruption(
                "MW-F07", f"{error}; the latest version needs it, so that it was not collected"
            ) from None
        raise StoreUnavailable(f"{error}; it was collected while it was read, read again") from None
