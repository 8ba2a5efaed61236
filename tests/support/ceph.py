"""Ceph's S3 gateway with a cluster of one, in memory: Debian's radosgw, ceph-mon and ceph-osd.

A real server, of another make than moto: `make test-ceph`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import IO, Self

import boto3

from tests.support.s3server import S3Server

_START_SECONDS_MAX = 180
_FSID = "5f1c1a52-5c3e-4c0f-8a0b-0d8f6c1f2a11"
_CONFIG = """
[global]
fsid = {fsid}
mon host = 127.0.0.1:{mon}
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon initial members = a
osd objectstore = memstore
memstore device bytes = 1073741824
osd class load list = *
osd class default list = *
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
[client.rgw.a]
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{gateway}
"""


class CephServer(S3Server):
    """The same as moto's, for whoever uses it."""

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="memwal-ceph-"))
        self._running: list[subprocess.Popen[bytes]] = []
        self._numbers = count(1)
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def make_bucket(self) -> str:
        name = f"bucket-{next(self._numbers):04d}"
        self._client.create_bucket(Bucket=name)
        return name

    def _start(self) -> None:
        mon, gateway = _free_port(), _free_port()
        for name in ("mon", "osd", "rgw"):
            (self._folder / name).mkdir()
        self._config = self._folder / "ceph.conf"
        self._config.write_text(
            _CONFIG.format(fsid=_FSID, mon=mon, gateway=gateway, folder=self._folder)
        )
        keyring, monmap = str(self._folder / "keyring"), str(self._folder / "monmap")
        self._run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.")
        where = ("--add", "a", f"127.0.0.1:{mon}")
        self._run("monmaptool", "--create", *where, "--fsid", _FSID, monmap)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        self._serve("ceph-mon", "-i", "a", "-f")
        self._run("ceph", "osd", "create")
        self._run("ceph-osd", "-i", "0", "--mkfs")
        self._serve("ceph-osd", "-i", "0", "-f")
        self._serve("radosgw", "-n", "client.rgw.a", "-f")
        made = self._run("radosgw-admin", "user", "create", "--uid=tests", "--display-name=tests")
        key = json.loads(made[made.index("{") :])["keys"][0]
        self.endpoint = f"http://127.0.0.1:{gateway}"
        self.storage_options = {
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
            "aws_access_key_id": key["access_key"],
            "aws_secret_access_key": key["secret_key"],
            "aws_region": "us-east-1",
        }
        self._client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=key["access_key"],
            aws_secret_access_key=key["secret_key"],
            region_name="us-east-1",
        )
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not _listens(gateway):
            if time.monotonic() > deadline or any(p.poll() is not None for p in self._running):
                log = (self._folder / "client.rgw.a.log").read_text(errors="replace")
                raise RuntimeError(f"Ceph did not start; its gateway says: {log[-2000:]}")
            time.sleep(0.2)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            [*command, "-c", str(self._config)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_SECONDS_MAX,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stdout

    def _serve(self, *command: str) -> None:
        log: IO[bytes] = (self._folder / f"{command[0]}.out").open("wb")
        with log:
            self._running.append(
                subprocess.Popen(
                    [*command, "-c", str(self._config)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # They end with the tests, however those end.
                    preexec_fn=_end_with_parent,
                )
            )

    def _stop(self) -> None:
        for process in reversed(self._running):
            process.kill()
            process.wait()
        shutil.rmtree(self._folder)


def _end_with_parent() -> None:
    import ctypes

    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6", use_errno=True).prctl(1, 9)
    os.setpgid(0, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
