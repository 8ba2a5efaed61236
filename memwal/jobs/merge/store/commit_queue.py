"""Turns to commit to a table, for the processes and threads of this host."""

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
"""How long after a refused commit a table's merges take turns."""

WAIT_SECONDS_MAX = 120.0
"""The longest wait for a turn; after that, a merge commits alongside the others."""

_POLL_SECONDS = 0.02
_KEPT_SECONDS = 86_400.0
_OPEN = os.O_RDWR | os.O_NOFOLLOW


class HostTurns:
    """The Turns port: a lock file per table, which the kernel unlocks when its holder dies.

    Of two concurrent commits that insert 200 keys or more, Lance refuses the second, whose join and
    writes are wasted. Smaller ones both pass, so turns are taken only for a while after a refusal,
    or after a commit that would have been refused beside another; the file's time says when that
    was. Where no file can be made, there are no turns.
    """

    def __init__(
        self,
        uri: str,
        clock: Clock,
        *,
        waiting: Callable[[], None] = lambda: None,
        alone: bool = True,
        folder: Path | None = None,
    ) -> None:
        """`waiting` is called while a turn is waited for, and may raise.

        `alone` means that nobody else is known to merge the table now.
        """
        self._clock = clock
        self._waiting = waiting
        self._alone = alone
        self._folder = folder or _own_folder()
        self._name = f"{hashlib.sha256(uri.encode()).hexdigest()[:32]}.turn"

    @contextmanager
    def turn(self, inserts_many: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """See the port."""
        if not self._alone and inserts_many():
            self.lost()  # commits would be refused, so turns are taken from now on
        file = self._open_recent()
        if file is None:
            yield False
            return
        try:
            yield self._lock(file)
        finally:
            # Closing alone would leave the lock to a process that was forked meanwhile.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def lost(self) -> None:
        """See the port."""
        now = self._clock.now_nanos()
        with suppress(OSError):
            if self._folder is None:
                return
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if not _is_ours(self._folder):
                return
            file = os.open(self._folder / self._name, _OPEN | os.O_CREAT, 0o600)
            try:
                os.utime(file, ns=(now, now))
            finally:
                os.close(file)
            for other in self._folder.glob("*.turn"):
                if now - other.lstat().st_mtime_ns > _KEPT_SECONDS * 1e9:
                    other.unlink()

    def _open_recent(self) -> int | None:
        """The lock file, if a commit was refused lately."""
        if self._folder is None:
            return None
        try:
            if not _is_ours(self._folder):
                return None
            path = self._folder / self._name
            age_nanos = self._clock.now_nanos() - path.lstat().st_mtime_ns
            return os.open(path, _OPEN) if age_nanos < REMEMBERED_SECONDS * 1e9 else None
        except OSError:
            return None

    def _lock(self, file: int) -> bool:
        deadline = self._clock.monotonic_seconds() + WAIT_SECONDS_MAX
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic_seconds() >= deadline:
                    return False
                self._waiting()
                # A fixed pace, however long one has waited: polling takes no place in a queue.
                self._clock.sleep(_POLL_SECONDS * (0.5 + self._clock.random()))
            except OSError:
                return False  # a file system without locks
            else:
                return True


def _is_ours(folder: Path) -> bool:
    """Whether the folder is no link and owned by this user, so that no other user can block us."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _own_folder() -> Path | None:
    try:
        return Path(tempfile.gettempdir()) / f"memwal-turns-{os.getuid()}"
    except OSError:
        return None  # no folder that can be written to
