"""How far an ingest is, and how fast it may go: it pauses while too many generations wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread

from memwal.errors import MemWalError, Refused
from memwal.model import sum_known
from memwal.run.progress import Progress
from memwal.run.stores import Stores
from memwal.store.records.ingests import PlanRecord, ProgressRecord, Round, SourceFile

BACKLOG_CHECK_SECONDS = 5.0
BACKLOG_WAIT_SECONDS_MAX = 600.0
_BACKLOG_POLL_SECONDS = 1.0

_LOOK_SECONDS = 5.0
_SHOWN_BYTES_MIN = 256 * 1024 * 1024


@dataclass(kw_only=True)
class Backlog:
    """Holds an ingest back while too many generations wait for a merge.

    `merge` merges the table, and returns False while another run holds it. Without it, this waits
    some minutes for merges by other runs.
    """

    stores: Stores
    generations_max: int | None
    merge: Callable[[], bool] | None
    say: Callable[[str], None] = lambda text: None
    merges: int = 0
    _checked_at: float | None = None

    def __call__(self) -> None:
        """Wait until there is room, checking every few seconds. Raises Refused when none comes."""
        if self.generations_max is None:
            return
        now = self.stores.clock.monotonic_seconds()
        if self._checked_at is not None and now - self._checked_at < BACKLOG_CHECK_SECONDS:
            return
        pending = self._count_pending()
        if pending > self.generations_max:
            self.say(f"{pending} generations wait for a merge; {self.generations_max} may")
            self._make_room(self.generations_max)
        self._checked_at = self.stores.clock.monotonic_seconds()

    def _count_pending(self) -> int:
        return sum(len(shard.pending) for shard in self.stores.views.table().shards)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Merge in a thread while the block writes; its error is raised at the end."""
        if self.generations_max is None or self.merge is None:
            yield
            return
        ended = Event()
        with ThreadPoolExecutor(1, thread_name_prefix="merging") as pool:
            looking = pool.submit(self._look_until, ended)
            try:
                yield
            finally:
                ended.set()
            looking.result()

    def _look_until(self, ended: Event) -> None:
        while not ended.wait(BACKLOG_CHECK_SECONDS):
            self()

    def _make_room(self, generations_max: int) -> None:
        clock = self.stores.clock
        deadline = clock.monotonic_seconds() + BACKLOG_WAIT_SECONDS_MAX
        while True:
            if self.merge is not None:
                self.merges += self.merge()
            pending = self._count_pending()
            if pending <= generations_max:
                return
            if clock.monotonic_seconds() >= deadline:
                raise Refused(
                    "MW-I01",
                    f"{self.stores.uri}: {pending} generations wait for a merge, {generations_max} "
                    "may, and nobody merges them fast enough; run `memwal merge`, or this with "
                    "--merge; it goes on where it stopped",
                )
            clock.sleep(_BACKLOG_POLL_SECONDS)


def show_reading(progress: Progress, files: Sequence[SourceFile]) -> Callable[[int], None]:
    """Show how much of large files is read before the first row; call the result with bytes."""
    total = sum(file.size_bytes for file in files)
    lock, read = Lock(), 0
    if total < _SHOWN_BYTES_MIN:
        return lambda size_bytes: None

    def take(size_bytes: int) -> None:
        nonlocal read
        with lock:
            read += size_bytes
            progress.done(read, read)

    progress.start("reading all files", total, total)
    return take


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Shows how far a track through files is. `rows` are the files' numbers of rows, if known."""

    progress: Progress
    files: Sequence[SourceFile]
    rows: Mapping[str, int | None]

    def start(self, began: ProgressRecord) -> None:
        """Begin where earlier runs ended."""
        total = sum_known(self.rows.get(file.uri) for file in self.files) or 0
        self.progress.start("rows", total, sum(file.size_bytes for file in self.files))
        if began.rows:
            self(began)

    def __call__(self, mark: ProgressRecord) -> None:
        """Show that everything up to `mark` is durable."""
        done = sum(file.size_bytes for file in self.files[: mark.split])
        for file in self.files[mark.split : mark.split + 1]:
            if rows := self.rows.get(file.uri):
                done += int(file.size_bytes * min(1.0, mark.row / rows))
        self.progress.done(mark.rows, done)


@contextmanager
def show_tracks(progress: Progress, records: Round, plan: PlanRecord) -> Iterator[None]:
    """Show how far the tracks of staged rows are, from the progress that their writers record."""
    rows = sum(staged.rows for staged in plan.staged or ())
    size_bytes = sum(file.size_bytes for file in plan.sources)
    seen: dict[str, ProgressRecord] = {}

    def look() -> None:
        with suppress(MemWalError):  # the writers of the rows report errors, not this display
            records.refresh_progress(seen)
        done = sum(record.rows for record in seen.values())
        progress.done(done, size_bytes * done // rows if rows else 0)

    progress.start("rows", rows, size_bytes)
    look()
    with _repeat(look):
        yield
    look()


@contextmanager
def _repeat(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` every few seconds in a thread, while the block runs."""
    ended = Event()

    def run() -> None:
        while not ended.wait(_LOOK_SECONDS):
            look()

    thread = Thread(target=run, name="ingest progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
