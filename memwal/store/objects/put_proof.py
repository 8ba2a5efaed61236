"""Proves that a store has put-if-absent before anything is written there, by trying it.

Everything that keeps two writers apart hangs on it: WAL entries, shard manifests, the lease, and
the commits that Lance makes by itself. Some servers that speak S3's protocol ignore
`If-None-Match`, and then each put of a name replaces the one before it, without an error.
"""

from __future__ import annotations

from contextlib import suppress

from memwal.errors import AlreadyExists, MemWalError, Missing, StoreUnavailable, Unsupported
from memwal.format import layout
from memwal.ports import Clock, Objects

_FIRST, _SECOND = b"first", b"second"
_ATTEMPTS_MAX = 3
# Remembered by this process alone: a file that vouches for a store could be forged, or copied along
# with a table to a store for which it was never true.
_proven: set[str] = set()


def ensure_put_if_absent(objects: Objects, clock: Clock) -> None:
    """Prove put-if-absent, once a process for each store. Raises as `prove_put_if_absent` does."""
    if objects.store not in _proven:
        prove_put_if_absent(objects, clock)
        _proven.add(objects.store)


def prove_put_if_absent(objects: Objects, clock: Clock) -> None:
    """Put a scratch object twice: the second put has to fail. Four requests.

    Raises Unsupported when it does not, StoreUnavailable when that can't be settled,
    BadCredentials. The scratch object is removed; one that a fault leaves behind is garbage.
    """
    for _ in range(_ATTEMPTS_MAX):
        path = f"{layout.STAGING}/{clock.new_id()}"
        try:
            first, second = _create(objects, path, _FIRST), _create(objects, path, _SECOND)
            stored = _read_stored(objects, path)
        finally:
            with suppress(MemWalError):
                objects.delete([path])
        # What is stored decides, not the answers alone: a put whose reply was lost is sent again,
        # and then meets what it wrote itself.
        if first and stored == _SECOND:
            raise Unsupported(
                "MW-O11",
                f"{objects.uri}: this store does not keep put-if-absent (If-None-Match: * on S3): "
                "the second put of a name replaced the first. Writers, Lance's own too, would "
                "overwrite each other's rows and commits, so nothing was written: upgrade or "
                "reconfigure the store, or move the table to one that keeps it",
            )
        if not second and stored == _FIRST:
            return
    raise StoreUnavailable(
        f"{objects.uri}: whether this store keeps put-if-absent could not be settled: what was put "
        "was not read back; nothing was written, run again"
    )


def _create(objects: Objects, path: str, data: bytes) -> bool:
    try:
        objects.put_if_absent(path, data)
    except AlreadyExists:
        return False
    return True


def _read_stored(objects: Objects, path: str) -> bytes | None:
    try:
        return objects.get(path, len(_SECOND))
    except Missing:
        return None
