"""The turn to commit to a table, among the processes and threads of this host."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memwal.ports import Clock

REMEMBERED_SECONDS = 600.0
"""For how long after a refused commit a table's merges take turns."""

WAIT_SECONDS_MAX = 600.0
"""The longest wait for a turn. Who waited in vain commits beside the others."""

_POLL_SECONDS = 0.05
_KEPT_SECONDS = 86_400.0


class HostTurns:
    """The Turns port: a lock file per table, which the kernel unlocks when its holder dies.

    Two commits that insert 200 keys or more never pass side by side in Lance, so that the second
    one has joined and written for nothing. Other commits pass, so that turns are taken only after
    one was refused: the file's time says when. Where no file can be made there are no turns.
    """

    def __init__(
        self,
        uri: str,
        clock: Clock,
        *,
        waiting: Callable[[], None] = lambda: None,
        folder: Path | None = None,
    ) -> None:
        """`waiting` is called while a turn is waited for, and may raise."""
        self._clock = clock
        self._waiting = waiting
        name = hashlib.sha256(uri.encode()).hexdigest()[:32]
        self._path = (folder or _own_folder()) / f"{name}.turn"

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """See the port."""
        file = self._opened() if self._is_contended() else None
        if file is None:
            yield False
            return
        try:
            yield self._locked(file)
        finally:
            os.close(file)  # which unlocks it

    def lost(self) -> None:
        """See the port."""
        now = self._clock.now_nanos()
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                os.utime(file, ns=(now, now))
            finally:
                os.close(file)
            for other in self._path.parent.glob("*.turn"):
                if now - other.stat().st_mtime_ns > _KEPT_SECONDS * 1e9:
                    other.unlink()

    def _is_contended(self) -> bool:
        try:
            age_nanos = self._clock.now_nanos() - self._path.lstat().st_mtime_ns
            folder = self._path.parent.lstat()
        except OSError:
            return False
        # In a folder of somebody else's, anybody might hold us up.
        ours = stat.S_ISDIR(folder.st_mode) and folder.st_uid == os.getuid()
        return ours and age_nanos < REMEMBERED_SECONDS * 1e9

    def _opened(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return None

    def _locked(self, file: int) -> bool:
        deadline = self._clock.monotonic_seconds() + WAIT_SECONDS_MAX
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic_seconds() >= deadline:
                    return False
                self._waiting()
                # As often for all, whoever came first: the kernel keeps no queue for those who ask.
                self._clock.sleep(_POLL_SECONDS * (0.5 + self._clock.random()))
            except OSError:
                return False  # a file system without locks
            else:
                return True


def _own_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"memwal-turns-{os.getuid()}"
