"""What passes remember of a table's shards, so that the next one only looks at what changed.

It tells where to look, and lets nothing go: in a shard that is looked at, everything is read again.
If it is malformed, or from a newer build, the next pass is a full sweep.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import Any

from memwal.errors import Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.jobs.garbage.model import Sweep, SweptShard
from memwal.model import ShardId
from memwal.ports import DOCUMENT_BYTES_MAX, Objects

PATH = f"{layout.MAINTENANCE}/cache/sweep.json"
_FORMAT = 1


class StoredSweeps:
    """The stored sweep of one table."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._newer = False

    @cached_property
    def found(self) -> Sweep | None:
        """The stored sweep; None when there is none, or it is malformed or can't be read.

        A store that can't be read is not reported from here: the table's own error shows it.
        """
        try:
            document = json.loads(self._objects.get(PATH, DOCUMENT_BYTES_MAX))
            self._newer = document["format"] > _FORMAT
            body = document["sweep"]
            known = document["format"] == _FORMAT and document["sha256"] == _digest(body)
            return _decode(body) if known else None
        except (Missing, Corruption, ValueError, KeyError, TypeError, AttributeError):
            return None
        except (RecursionError, OverflowError):
            return None
        except MemWalError:
            self._newer = True  # it may be
            return None

    def remember(self, sweep: Sweep, before_write: Callable[[], None]) -> None:
        """Store the sweep, unless a newer build's is there; a failure to store it is ignored."""
        body = _encode(sweep)
        document = {"format": _FORMAT, "sha256": _digest(body), "sweep": body}
        data = json.dumps(document, separators=(",", ":")).encode()
        if not self._newer and len(data) <= DOCUMENT_BYTES_MAX:
            with suppress(MemWalError):
                before_write()
                self._objects.put(PATH, data)


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _encode(sweep: Sweep) -> dict[str, Any]:
    shards = {
        shard: [was.next_generation, was.waits_since_nanos, was.merged_generation]
        for shard, was in sorted(sweep.shards.items())
    }
    return {**asdict(sweep), "shards": shards}


def _decode(body: Mapping[str, Any]) -> Sweep:
    """Read a sweep; raises ValueError, KeyError or TypeError for what `_encode` never writes."""
    shards = {_check_shard(shard): _swept(*was) for shard, was in body["shards"].items()}
    found = Sweep(**{**body, "shards": shards})
    numbers = (found.swept_at_nanos, found.version, found.version_at_nanos)
    if type(found.wal) is not bool or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError("not as it is written here")
    return found


def _check_shard(name: str) -> ShardId:
    if not layout.is_shard_folder(name):
        raise ValueError(f"{name!r} is no shard")
    return ShardId(name)


def _swept(next_generation: int, waits_since_nanos: int, merged_generation: int) -> SweptShard:
    numbers = (next_generation, waits_since_nanos, merged_generation)
    if any(type(n) is not int or not 0 <= n <= layout.U64_MAX for n in numbers):
        raise ValueError("not as it is written here")
    return SweptShard(
        next_generation=next_generation,
        waits_since_nanos=waits_since_nanos,
        merged_generation=merged_generation,
    )
