"""Small JSON documents of one record each: read strictly, as everything that is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from memwal.errors import Corruption, Missing, StoreUnavailable
from memwal.ports import DOCUMENT_BYTES_MAX, Objects

T = TypeVar("T")
_FORMAT = 1
_adapters: dict[Any, Any] = {}


def _adapter(kind: Any) -> Any:
    if kind not in _adapters:
        from pydantic import TypeAdapter  # imported when asked for: most tables have none

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def put_document(objects: Objects, path: str, record: Any) -> None:
    """Store a record, a dataclass, in place of the one at that path."""
    document = {"format": _FORMAT, **_adapter(type(record)).dump_python(record, mode="json")}
    objects.put(path, json.dumps(document).encode())


NEWER = "was it made by a newer memwal? If not, move the file away"


def read_document(
    objects: Objects, path: str, kind: type[T], is_sound: Callable[[T], bool], error: Corruption
) -> T | None:
    """The record at a path; None if there is none.

    Raises `error` for bytes that are none, or of another format, and for a record that is not sound
    (invariant 10); `is_sound` may raise Corruption, too.
    """
    try:
        document = json.loads(objects.get(path, DOCUMENT_BYTES_MAX))
        if document.pop("format") == _FORMAT:
            found: T = _adapter(kind).validate_json(json.dumps(document), strict=True)
            if is_sound(found):
                return found
    except Missing:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Corruption):
        pass
    raise error


def delete_document(objects: Objects, path: str) -> None:
    """Delete one object. Raises StoreUnavailable when that fails."""
    for refused, why in objects.delete([path]).failed:
        raise StoreUnavailable(f"{objects.uri}: {refused} can't be deleted: {why}")
