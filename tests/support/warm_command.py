"""The `memwal` command as a program that starts in milliseconds, for whoever can only run programs.

Its process is a small one, without site-packages, that hands its words, folder, environment and
streams to a fork of a process that has everything imported (`nursery`), and stands for it: signals
that can be caught are passed on, SIGKILL of the one ends the other, and it ends as the fork does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

_REQUEST_BYTES_MAX = 1 << 20
_START_SECONDS_MAX = 60
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SCRIPT = """\
#!{python} -SE
import sys
sys.path.insert(0, {folder!r})
import warm_command
warm_command.stand_for({address!r})
"""


def script(python: str, address: str) -> str:
    """The program's text, for the nursery that listens at this address."""
    return _SCRIPT.format(python=python, folder=os.path.dirname(__file__), address=address)  # noqa: PTH120


def stand_for(address: str) -> None:
    """The program itself. Does not return."""
    nursery = _connect(address)
    request = {
        "module": "tests.support.nursery",
        "name": "memwal",
        "arguments": [sys.argv[1:]],
        "cwd": os.getcwd(),  # noqa: PTH109
        "env": dict(os.environ),
    }
    socket.send_fds(nursery, [json.dumps(request).encode()], [0, 1, 2])
    pid = int(nursery.recv(32))
    for number in _PASSED_ON:
        signal.signal(number, lambda caught, _: os.kill(pid, caught))
    code = int(nursery.recv(32))
    if code < 0:
        if -code in _PASSED_ON:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _connect(address: str) -> socket.socket:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while True:
        nursery = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            nursery.connect(address)
            return nursery
        except OSError:  # it is still importing
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


# ---- the process that everything is imported in; it ends when its stdin does


def _serve(address: str) -> dict[str, Any]:
    """Forks for each program that comes. Returns in the fork, with the request."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [])
        if sys.stdin in ready:
            sys.exit()
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(client)
        client.close()


def _keep(client: socket.socket) -> dict[str, Any]:
    """Forks the one that runs the command, and waits for it. Returns there only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(client, _REQUEST_BYTES_MAX, 3)
    pid = os.fork()
    if pid == 0:
        client.close()
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        request: dict[str, Any] = json.loads(message)
        return request
    for stream in streams:
        os.close(stream)
    client.send(b"%d" % pid)
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([client, ended], [], [])
    if ended not in ready:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        client.send(b"%d" % code)
    os._exit(0)


if __name__ == "__main__":
    from tests.support.nursery import become, preload

    variables = preload()
    become(_serve(sys.argv[1]), variables)
