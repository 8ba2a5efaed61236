"""Processes that start in milliseconds: each is a fork of one that has everything imported.

Importing is nearly all that a short run of `memwal` does. A process from here runs the same code as
the command line, with streams, environment, folder and exit code of its own; SIGKILL ends it as a
whole: no handler runs, and what its threads and Lance's had in flight is cut off. Where the start
itself is tested (closed streams, what is imported, Spark), start the real thing.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS_MAX = 120

# Lance and Arrow start their threads at first use, so a fork behind the import alone is safe.
_PRELOADED = ("boto3", "hypothesis", "lance", "numpy", "pyarrow.dataset", "pytest")
_PACKAGE = "memwal"
# Spark is started by an exec of its own; the package's script would run.
_LEFT_OUT = ("spark", "__main__")
_REQUEST_BYTES_MAX = 1 << 20


# ---- for tests


class Started:
    """A process from the nursery, used as a `subprocess.Popen[str]` is."""

    def __init__(self, out: IO[str], err: IO[str], status: IO[bytes]) -> None:
        self.stdout, self.stderr = out, err
        self.returncode: int | None = None
        self._status = status
        self.pid = int(status.readline())

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *error: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._look(0)

    def wait(self, timeout: float = END_SECONDS_MAX) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def communicate(self, timeout: float = END_SECONDS_MAX) -> tuple[str, str]:
        """What it wrote to stdout and stderr, once it has ended; when it does not, it is killed."""
        with ThreadPoolExecutor(2) as pool:
            out, err = (pool.submit(stream.read) for stream in (self.stdout, self.stderr))
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return out.result(), err.result()

    def send_signal(self, number: int) -> None:
        """Send it, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            line = self._status.readline()
            assert line, "the nursery has ended"
            self.returncode = int(line)
            self._status.close()
        return self.returncode


def start(
    target: Callable[..., object],
    *arguments: Any,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    source: Path = ROOT,
) -> Started:
    """Call a function of a module in a process of its own. The arguments travel as JSON.

    `source` is the folder whose memwal it is.
    """
    request = {
        "module": target.__module__,
        "name": target.__qualname__,
        "arguments": arguments,
        "cwd": str(cwd or Path.cwd()),
        "env": {**(os.environ if env is None else env), **_find_paths(source)},
    }
    ours, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
    try:
        socket.send_fds(_nursery(source), [json.dumps(request, default=str).encode()], theirs)
    finally:
        for fd in theirs:
            os.close(fd)
    out, err, status = ours
    return Started(os.fdopen(out), os.fdopen(err), os.fdopen(status, "rb", buffering=0))


def run_memwal(
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = END_SECONDS_MAX,
    source: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """`memwal ARGUMENTS`, as `subprocess.run` would run it; its output is captured."""
    words = [str(argument) for argument in arguments]
    with start(memwal, words, cwd=cwd, env=env, source=source) as process:
        out, err = process.communicate(timeout)
    return subprocess.CompletedProcess(words, process.wait(), out, err)


def start_memwal(
    *arguments: object, env: Mapping[str, str] | None = None, source: Path = ROOT
) -> Started:
    """`memwal ARGUMENTS`, as `subprocess.Popen` would start it; stdout is a pipe."""
    return start(memwal, [str(argument) for argument in arguments], env=env, source=source)


def memwal(arguments: list[str]) -> None:
    """The command, in the process that it is called in."""
    from memwal.cli import main

    sys.argv = ["memwal", *arguments]
    main(arguments)


def killed(target: Callable[..., object], *arguments: Any) -> bool:
    """Whether a function ends its own process by SIGKILL, as it is meant to."""
    with start(target, *arguments) as process:
        process.communicate()
    return process.returncode == -signal.SIGKILL


def _find_paths(source: Path) -> dict[str, str]:
    """The variables by which another memwal than the one beside these tests is imported."""
    if source == ROOT:
        return {}
    return {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1"}


@cache
def _nursery(source: Path) -> socket.socket:
    """Starts the process that all others are forked from; it ends with this one."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(theirs.fileno())],
        cwd=ROOT,
        env={**os.environ, **_find_paths(source)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    return mine


# ---- the process that everything is imported in


def preload() -> dict[str, str]:
    """Import everything. Returns the environment variables that this set."""
    before = dict(os.environ)
    for name in _PRELOADED:
        importlib.import_module(name)
    package = importlib.import_module(_PACKAGE)
    for module in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
        if not module.name.endswith(_LEFT_OUT):
            importlib.import_module(module.name)
    if package.__path__[0] == str(ROOT / _PACKAGE):  # another one need not suit them
        importlib.import_module("tests.support.builders")
    importlib.import_module("tests.support.nursery")
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    return {name: value for name, value in os.environ.items() if name not in before}


def become(request: Mapping[str, Any], added: Mapping[str, str]) -> None:
    """In a fork: take the folder and the environment of the request, and call its function."""
    os.chdir(request["cwd"])
    # Whoever runs the tests in the background has interrupts ignored, and so have their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update({**added, **request["env"]})
    function: Any = importlib.import_module(request["module"])
    for name in request["name"].split("."):
        function = getattr(function, name)
    function(*request["arguments"])


def _serve(control: socket.socket) -> dict[str, Any]:
    """Forks a child for each request. Returns in the child, with the request."""
    children: dict[int, tuple[int, int]] = {}  # pidfd -> pid, where its exit code goes
    while True:
        ready, _, _ = select.select([control, *children], [], [])
        for watched in (fd for fd in ready if isinstance(fd, int)):
            pid, told = children.pop(watched)
            _, status = os.waitpid(pid, 0)
            _tell(told, os.waitstatus_to_exitcode(status))
            os.close(told)
            os.close(watched)
        if control not in ready:
            continue
        message, streams, _, _ = socket.recv_fds(control, _REQUEST_BYTES_MAX, 3)
        if not message:
            for pid, _ in children.values():
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        out, err, told = streams
        pid = os.fork()
        if pid == 0:
            for watched, (_, other) in children.items():
                os.close(watched)
                os.close(other)
            control.close()
            os.dup2(out, 1)
            os.dup2(err, 2)
            for fd in streams:
                os.close(fd)
            request: dict[str, Any] = json.loads(message)
            return request
        _tell(told, pid)
        children[os.pidfd_open(pid)] = pid, told
        os.close(out)
        os.close(err)


def _tell(told: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits
        os.write(told, b"%d\n" % number)


def _main() -> None:
    added = preload()
    become(_serve(socket.socket(fileno=int(sys.argv[1]))), added)


if __name__ == "__main__":
    _main()
