"""Warm worker processes: each does one unit at a time, and one that dies costs only its unit.

A worker is a new Python, started by exec, because Lance's threads do not survive a fork. Its
standard output goes to our standard error, so that nothing it prints gets into a document on ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from queue import Empty, SimpleQueue

from memwal.errors import WorkerDied
from memwal.ports import Clock
from memwal.run.workers.process import Done, MakeWorker, Said

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from memwal.run.workers.process import serve; serve(int(sys.argv[1]))"
)
_LEAVE_SECONDS_MAX = 30.0
_KILL_SECONDS_MAX = 5.0
_RESTART_SECONDS_MIN = 0.5
_RESTART_SECONDS_MAX = 60.0

Say = Callable[[Hashable, str, str], None]
"""Called with a unit's key, a level (`warning`, `trace`) and a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Workers of one kind."""

    make: MakeWorker
    workers_max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """When workers are replaced or let go.

    A worker that has more memory than `memory_bytes_max` after a unit, or has done `units_max`, is
    replaced; one that is idle for `idle_seconds_max` is let go. A unit that takes longer than
    `unit_seconds_warned` only causes a warning.
    """

    memory_bytes_max: int = 2**30
    units_max: int = 1000
    idle_seconds_max: float = 300.0
    unit_seconds_warned: float = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitEnd:
    """What came of a unit: what the worker returned, or an error."""

    key: Hashable
    seconds: float
    result: object


@dataclass(kw_only=True, eq=False, slots=True)
class _Worker:
    lane: str
    process: subprocess.Popen[bytes]
    pipe: Connection
    idle_since: float
    units: int = 0
    key: Hashable = None
    began: float = 0.0
    warn_at: float = 0.0
    doing: str = ""
    busy: bool = False
    kill_at: float | None = None
    """When it is killed; set once it was told to leave."""


@dataclass(slots=True)
class _Deaths:
    """How many workers of a lane died in a row, and when a new one may be started."""

    count: int = 0
    start_after: float = 0.0


@dataclass(kw_only=True)
class WorkerPool:
    """Lanes of workers, started when there is work. Not thread-safe; use as a context manager."""

    lanes: Mapping[str, Lane]
    clock: Clock
    limits: WorkerLimits = WorkerLimits()
    say: Say = lambda key, level, text: None
    on_replaced: Callable[[str], None] = lambda reason: None
    _workers: list[_Worker] = field(default_factory=list)
    _deaths: dict[str, _Deaths] = field(default_factory=dict)
    _news: SimpleQueue[tuple[_Worker, Done | Said | None]] = field(default_factory=SimpleQueue)
    _unstarted: list[UnitEnd] = field(default_factory=list)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the current workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def can_take(self, lane: str) -> bool:
        """Whether a unit would start at once."""
        if self._find_idle(lane) is not None:
            return True
        there = sum(w.lane == lane and w.kill_at is None for w in self._workers)
        rested = self.clock.monotonic_seconds() >= self._deaths_of(lane).start_after
        return rested and there < self.lanes[lane].workers_max

    def warm(self, lane: str) -> None:
        """Start a worker ahead of time, so that its imports are done when a unit comes."""
        with suppress(OSError):
            self._spawn(lane)

    def start(self, lane: str, key: Hashable, unit: object) -> None:
        """Begin a unit; call only when `can_take`. Errors come back from `wait` as its end."""
        now = self.clock.monotonic_seconds()
        try:
            worker = self._find_idle(lane) or self._spawn(lane)
        except OSError as error:
            self._count_death(lane)
            died = WorkerDied(f"no worker process could be started: {error}")
            self._unstarted.append(UnitEnd(key=key, seconds=0.0, result=died))
            return
        worker.busy, worker.key, worker.began, worker.doing = True, key, now, ""
        worker.warn_at = now + self.limits.unit_seconds_warned
        with suppress(OSError):  # it has just died, and its end will be reported
            worker.pipe.send((unit,))

    def wait(self, seconds: float) -> list[UnitEnd]:
        """The units that ended; returns as soon as one has, and after `seconds` at the latest."""
        deadline = self.clock.monotonic_seconds() + seconds
        while True:
            self._look_after()
            ends, self._unstarted = self._unstarted, []
            left = 0.0 if ends else max(0.0, deadline - self.clock.monotonic_seconds())
            ends += self._hear(left)
            if ends or self.clock.monotonic_seconds() >= deadline:
                return ends

    def stop(self, seconds_max: float) -> list[UnitEnd]:
        """Let every unit stop before its next commit, and end the workers; kill what is left."""
        deadline = self.clock.monotonic_seconds() + seconds_max
        for worker in self._workers:
            self._dismiss(worker)
            worker.kill_at = deadline
        ends, self._unstarted = self._unstarted, []
        # A process that waits for a hung disk can't even be killed.
        while self._workers and self.clock.monotonic_seconds() < deadline + _KILL_SECONDS_MAX:
            self._look_after()
            left = deadline - self.clock.monotonic_seconds()
            ends += self._hear(max(left, 0.1))
        return ends

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(0.0 if error[0] else _LEAVE_SECONDS_MAX)

    # ---- messages from workers

    def _hear(self, seconds: float) -> list[UnitEnd]:
        """Take all pending messages; if there are none, wait for one up to `seconds`."""
        ends: list[UnitEnd] = []
        with suppress(Empty):
            worker, message = self._news.get(timeout=seconds)
            while True:
                ends += self._take(worker, message)
                worker, message = self._news.get_nowait()
        return ends

    def _take(self, worker: _Worker, message: Done | Said | None) -> Iterable[UnitEnd]:
        if isinstance(message, Said):
            if message.level == "doing":
                worker.doing = message.text
            else:
                self.say(worker.key, message.level, message.text)
        elif isinstance(message, Done):
            self._deaths.pop(worker.lane, None)
            yield self._end(worker, message.result)
            worker.units += 1
            if reason := self._judge(worker, message):
                self.on_replaced(reason)
                self._dismiss(worker)
        else:
            self._workers.remove(worker)
            worker.pipe.close()
            if worker.busy or worker.kill_at is None:
                self.on_replaced("died")
                self._count_death(worker.lane)
            if worker.busy:
                yield self._end(worker, WorkerDied(_explain(worker)))

    def _judge(self, worker: _Worker, done: Done) -> str | None:
        """Why the worker should be replaced, in a word; None if it should not."""
        if done.resident_bytes > self.limits.memory_bytes_max:
            return "grown"
        if worker.units >= self.limits.units_max:
            return "old"
        return "spent" if done.spent else None

    def _end(self, worker: _Worker, result: object) -> UnitEnd:
        now = self.clock.monotonic_seconds()
        worker.busy, worker.idle_since = False, now
        return UnitEnd(key=worker.key, seconds=now - worker.began, result=result)

    def _count_death(self, lane: str) -> None:
        deaths = self._deaths_of(lane)
        wait = _RESTART_SECONDS_MIN * 2.0 ** min(deaths.count, 20)
        deaths.count += 1
        deaths.start_after = self.clock.monotonic_seconds() + min(wait, _RESTART_SECONDS_MAX)

    def _deaths_of(self, lane: str) -> _Deaths:
        return self._deaths.setdefault(lane, _Deaths())

    # ---- starting and ending them

    def _find_idle(self, lane: str) -> _Worker | None:
        # Prefer the one that worked last: the others may stay idle long enough to be let go.
        idle = [w for w in self._workers if w.lane == lane and not w.busy and w.kill_at is None]
        return max(idle, key=lambda worker: worker.idle_since, default=None)

    def _spawn(self, lane: str) -> _Worker:
        ours, theirs = Pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=_errors_descriptor(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = _Worker(
            lane=lane, process=process, pipe=ours, idle_since=self.clock.monotonic_seconds()
        )
        try:
            threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        except RuntimeError as error:  # no thread could be started
            _kill(worker)
            process.wait()
            ours.close()
            raise OSError(str(error)) from None
        self._workers.append(worker)
        with suppress(OSError):
            ours.send(self.lanes[lane].make)
        return worker

    def _listen(self, worker: _Worker) -> None:
        """Receive from one worker, in a thread: a worker stuck mid-message blocks no other."""
        try:
            while True:
                self._news.put((worker, worker.pipe.recv()))
        except (EOFError, OSError):
            pass
        except Exception:  # the bytes are not a message
            _kill(worker)
        worker.process.wait()
        self._news.put((worker, None))

    def _dismiss(self, worker: _Worker) -> None:
        worker.kill_at = self.clock.monotonic_seconds() + _LEAVE_SECONDS_MAX
        with suppress(OSError):
            worker.pipe.send(None)

    def _look_after(self) -> None:
        now = self.clock.monotonic_seconds()
        for worker in self._workers:
            if worker.kill_at is not None:
                if now >= worker.kill_at:
                    _kill(worker)
            elif not worker.busy:
                if now - worker.idle_since >= self.limits.idle_seconds_max:
                    self._dismiss(worker)
            elif now >= worker.warn_at:
                seconds = now - worker.began
                worker.warn_at = now + seconds
                what = worker.doing or "start"
                self.say(worker.key, "warning", f"{what} has taken {seconds:.0f} s so far")


def _kill(worker: _Worker) -> None:
    """Kill the worker and the processes that it has started."""
    if worker.process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)


def _explain(worker: _Worker) -> str:
    code = worker.process.returncode
    how = f"ended with exit code {code}"
    if code < 0:
        with suppress(ValueError):
            how = f"was ended by {signal.Signals(-code).name}"
    what = f"the worker process {worker.process.pid} {how}"
    if worker.kill_at is not None:
        what += " after it was told to stop"
        why = "It took too long to reach the end of a commit"
    elif code == -signal.SIGKILL:
        why = "Too little memory can do that"
    else:
        why = "Data that is damaged deep inside a file can do that, and so can too little memory"
    doing = worker.doing or "its start"
    return f"{what} during {doing}. {why}. What was committed before stays"


def _errors_descriptor() -> int:
    """Our standard error, for a worker's standard output."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
