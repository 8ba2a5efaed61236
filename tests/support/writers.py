"""Closes the pylance writers that a test leaves open.

One that nobody closes goes on looking for something to flush, collected or not. By the hundredth
they take more of the machine than the tests do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import lance
import pytest

# Of a store that is gone, a writer waits for minutes.
_SECONDS_MAX = 2.0
_opened: list[Any] = []
_open = lance.LanceDataset.mem_wal_writer


def _open_and_remember(self: lance.LanceDataset, *args: Any, **options: Any) -> Any:
    writer = _open(self, *args, **options)
    _opened.append(writer)
    return writer


lance.LanceDataset.mem_wal_writer = _open_and_remember


@pytest.fixture(autouse=True)
def close_writers() -> Iterator[None]:
    """Those of fixtures that several tests share were opened before, and stay open."""
    before = len(_opened)
    yield
    for writer in _opened[before:]:
        closing = Thread(target=_close, args=(writer,), daemon=True)
        closing.start()
        closing.join(_SECONDS_MAX)
    del _opened[before:]


def _close(writer: Any) -> None:
    with suppress(Exception):  # fenced, its folder gone, or closed by the test
        writer.close()
