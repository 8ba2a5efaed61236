"""A server for tests as a subprocess. State lives as long as it."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from itertools import count
from typing import Self

_START_SECONDS_MAX = 60


class ChildServer:
    """`with SomeServer() as server:`. It ends when its stdin does: killed tests leave none."""

    endpoint: str
    probed = ""
    """The path that is asked until it answers anything."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def command(self, port: int) -> Sequence[str]:
        """What to run, and `endpoint` set."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._process = subprocess.Popen(
            self.command(port),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def make_name(self, kind: str) -> str:
        """A name that was not given before."""
        return f"{kind}-{next(self._numbers):04d}"

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"{type(self).__name__} ended with {self._process.returncode}")
            try:
                urllib.request.urlopen(f"{self.endpoint}{self.probed}", timeout=5).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
