"""Small documents that spare later runs their reads.

One is taken as it was written, or not at all, and lets nothing go: a plan that is carried out reads
for itself what it rests on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from memwal.errors import Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.ports import Objects

T = TypeVar("T")
FORMAT = 3
BYTES_MAX = 8 * 1024 * 1024
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


class CacheFile(Generic[T]):
    """One document of a table, of values of the type `kind`."""

    def __init__(self, objects: Objects, name: str, kind: Any) -> None:
        self.path = f"{layout.MAINTENANCE}/cache/{name}.json"
        self._objects, self._kind = objects, kind
        self._is_newer = False

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        return TypeAdapter(self._kind)

    @cached_property
    def stored(self) -> T | None:
        """What is stored; None when there is none, or it is malformed or can't be read.

        A store that can't be read is not reported from here: the table's own error shows it.
        """
        try:
            document = json.loads(self._objects.get(self.path, BYTES_MAX))
            self._is_newer = document["format"] > FORMAT
            body = document["body"]
            if document["format"] == FORMAT and document["sha256"] == make_digest(body):
                return self._adapter.validate_json(json.dumps(body), strict=True)
        except (Missing, Corruption, *_MALFORMED):
            pass
        except MemWalError:
            self._is_newer = True  # it may be
        return None

    def write(self, value: T, before_write: Callable[[], None]) -> None:
        """Store a value, unless a newer build's is there; a failure to store it is ignored."""
        body = self._adapter.dump_python(value, mode="json", exclude_defaults=True)
        document = {"format": FORMAT, "sha256": make_digest(body), "body": body}
        data = json.dumps(document, separators=(",", ":")).encode()
        if not self._is_newer and len(data) <= BYTES_MAX:
            with suppress(MemWalError):
                before_write()
                self._objects.put(self.path, data)


def make_digest(body: Any) -> str:
    """The SHA-256 of a document's body."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
