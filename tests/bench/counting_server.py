"""moto's S3 server, counting every request that reaches it. Runs in the server's own process.

Besides S3 it answers addresses of its own: `/-forget` starts the counts anew, `/-counts` tells
them, `/-load` stores a local folder and `/-copy` copies a prefix without a request an object,
`/-latency` makes every answer take longer, `/-pad` listings of a folder of shards.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from moto import server
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from tests.bench.padded_listing import PaddedListing

_APPLICATION = server.DomainDispatcherApplication
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"[0-9a-f]{8,}|[01]{16,}|[0-9]+")


class Counting:
    """The WSGI application around moto's."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._inner = _APPLICATION(*arguments, **named)
        self._lock = threading.Lock()
        self._latency_seconds = 0.0
        self._padded: dict[str, PaddedListing] = {}
        self._forget()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Answer one request."""
        path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        if path.startswith("/-"):
            told = self._own(path, parse_qs(query))
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(told).encode()]
        with self._lock:
            self._kinds[_kind(environ["REQUEST_METHOD"], query)] += 1
            self._shapes[f"{environ['REQUEST_METHOD']} {_shape(path, query)}"] += 1
            self._sent += int(environ.get("CONTENT_LENGTH") or 0)
        if self._latency_seconds:
            time.sleep(self._latency_seconds)
        padded = self._padded.get(path.strip("/")) if environ["REQUEST_METHOD"] == "GET" else None
        asked = parse_qs(query)
        if padded is not None and asked.get("prefix", [""])[0].startswith(padded.below):
            start_response("200 OK", [("Content-Type", "application/xml")])
            return self._received([padded.page(asked)])
        return self._received(self._inner(environ, start_response))

    def _received(self, body: Iterable[bytes]) -> Iterable[bytes]:
        for part in body:
            with self._lock:
                self._bytes += len(part)
            yield part

    def _own(self, path: str, query: dict[str, list[str]]) -> Any:
        if path == "/-copy":
            return _copy(query["bucket"][0], query["from"][0], query["to"])
        if path == "/-load":
            return _load(Path(query["folder"][0]), query["bucket"][0], query["prefix"][0])
        if path == "/-pad":
            return self._pad(query["bucket"][0], query["below"][0], *map(int, query["objects"]))
        if path == "/-latency":
            self._latency_seconds = float(query["seconds"][0])
        if path == "/-forget":
            self._forget()
        return {
            "kinds": dict(self._kinds),
            "shapes": dict(self._shapes),
            "bytes_sent": self._sent,
            "bytes_received": self._bytes,
            "server_cpu_seconds": _cpu_seconds() - self._cpu,
        }

    def _pad(self, bucket: str, below: str, fewest: int, most: int) -> int:
        self._padded.pop(bucket, None)
        if most:
            keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_bucket(bucket).keys
            made = PaddedListing(keys=keys, below=below, fewest=fewest, most=most)
            self._padded[bucket] = made
        return self._padded[bucket].objects if most else 0

    def _forget(self) -> None:
        self._kinds: Counter[str] = Counter()
        self._shapes: Counter[str] = Counter()
        self._sent = self._bytes = 0
        self._cpu = _cpu_seconds()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _kind(method: str, query: str) -> str:
    names = parse_qs(query, keep_blank_values=True)
    if method == "GET":
        return "list" if "list-type" in names or "prefix" in names else "get"
    if method == "POST":
        return "delete" if "delete" in names else "post"
    return method.lower()


def _shape(path: str, query: str) -> str:
    """The path with ids and numbers taken out, and the folder that a listing is of."""
    prefix = parse_qs(query).get("prefix", [""])[0]
    text = f"{path.split('/', 2)[-1]}{'?' + prefix if 'prefix=' in query else ''}"
    return _NUMBER.sub("N", _UUID.sub("UUID", text))


def _load(folder: Path, bucket: str, prefix: str) -> int:
    """Store every file below a local folder."""
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in files:
        key = f"{prefix}/{file.relative_to(folder)}"
        backend.put_object(bucket_name=bucket, key_name=key, value=file.read_bytes())
    return len(files)


def _copy(bucket: str, origin: str, targets: list[str]) -> int:
    """Copy every object below `origin` to below each of `targets`."""
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    keys = [k for name, k in backend.get_bucket(bucket).keys.items() if name.startswith(origin)]
    for target in targets:
        for key in keys:
            backend.put_object(
                bucket_name=bucket,
                key_name=target + key.name.removeprefix(origin),
                value=key.value,
                etag=key.etag.strip('"'),
            )
    return len(keys) * len(targets)


if __name__ == "__main__":
    # The server ends when its stdin does.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.DomainDispatcherApplication = Counting
    server.main(sys.argv[1:])
