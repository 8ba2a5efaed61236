"""An S3 server in memory that takes next to no processor time, so that it is not what is measured.

It knows what boto3 and Lance ask for: puts with `If-None-Match`, gets of ranges, listings, deletes.
Nothing is authorized, and there are no multipart uploads. Its own addresses (`/-load`, `/-latency`,
`/-counts`, `/-forget`) are those of counting_server.py. After `/-refuse` it takes no request below
a prefix for some seconds; `/-repeat` makes many objects of a few. Runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_PAGE_OBJECTS = 1000
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>fewer requests, please</Message></Error>"
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>it is not there</Message></Error>"
_EXISTS = b"<Error><Code>PreconditionFailed</Code><Message>it is there</Message></Error>"

Answer = tuple[int, dict[str, str], bytes]


@dataclass(slots=True)
class Stored:
    """An object."""

    data: bytes
    etag: str
    at: float


@dataclass(slots=True)
class Bucket:
    """Objects by key, and the keys in order."""

    objects: dict[str, Stored] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def put(self, key: str, data: bytes) -> Stored:
        """Store an object in place of what is there."""
        if key not in self.objects:
            insort(self.keys, key)
        etag = f'"{md5(data, usedforsecurity=False).hexdigest()}"'
        self.objects[key] = Stored(data, etag, time.time())
        return self.objects[key]

    def repeat(self, folder: str, count: int) -> int:
        """Copy all below a folder `..._1` to `..._2` and so on; returns how many there are now."""
        stem = folder.removesuffix("1")
        found = [key for key in self.keys if key.startswith(f"{folder}/")]
        for number in range(2, count + 1):
            for key in found:
                self.objects[f"{stem}{number}{key[len(folder) :]}"] = self.objects[key]
        self.keys = sorted(self.objects)
        return len(found) * count

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def list(self, asked: dict[str, str]) -> bytes:
        """A page of a listing (version 2)."""
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter")
        most = min(_PAGE_OBJECTS, int(asked.get("max-keys", _PAGE_OBJECTS)))
        after = asked.get("continuation-token") or asked.get("start-after")
        at = bisect_left(self.keys, prefix) if after is None else bisect_right(self.keys, after)
        at, parts, folders, last = max(at, bisect_left(self.keys, prefix)), list[str](), 0, ""
        while at < len(self.keys) and self.keys[at].startswith(prefix) and len(parts) < most:
            last = self.keys[at]
            name, cut, _ = last[len(prefix) :].partition(delimiter or "\0")
            if delimiter and cut:
                folders += 1
                last = f"{prefix}{name}{delimiter}"
                parts.append(f"<CommonPrefixes><Prefix>{_encode(last)}</Prefix></CommonPrefixes>")
                last += "\U0010ffff"  # after all that is in the folder
                at = bisect_right(self.keys, last)
                continue
            found = self.objects[last]
            when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(found.at))
            parts.append(
                f"<Contents><Key>{_encode(last)}</Key><LastModified>{when}."
                f"{int(found.at % 1 * 1000):03d}Z</LastModified><ETag>{escape(found.etag)}</ETag>"
                f"<Size>{len(found.data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
            at += 1
        cut_off = at < len(self.keys) and self.keys[at].startswith(prefix)
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if cut_off else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<EncodingType>url</EncodingType><Prefix>{_encode(prefix)}</Prefix>"
            f"<KeyCount>{len(parts)}</KeyCount><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{str(cut_off).lower()}</IsTruncated>{token}{''.join(parts)}"
            "</ListBucketResult>"
        ).encode()


def _encode(key: str) -> str:
    return quote(key, safe="/")


class Server:
    """Everything that is stored, and what was asked for."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.kinds: Counter[str] = Counter()
        self.latency_seconds = 0.0
        self.refused, self.refuses_until = "", 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client, until it goes away."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").split("\r\n")
                method, target, _ = first.split(" ")
                pairs = (line.partition(":") for line in lines if line)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                if headers.get("expect", "").lower() == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path, _, query = target.partition("?")
                if path.startswith("/-") or path == "/moto-api/":
                    answer: Answer = 200, {}, self.own(path, query)
                else:
                    # The answer is that of the moment when the request arrives in half that time.
                    await asyncio.sleep(self.latency_seconds / 2)
                    answer = self.answer(method, unquote(path), query, headers, body)
                    await asyncio.sleep(self.latency_seconds / 2)
                status, more, data = answer
                size = more.pop("Content-Length", str(len(data)))
                told = "".join(f"{name}: {value}\r\n" for name, value in more.items())
                writer.write(
                    f"HTTP/1.1 {status} -\r\n{told}Content-Length: {size}\r\n\r\n".encode() + data
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(
        self, method: str, path: str, query: str, headers: dict[str, str], body: bytes
    ) -> Answer:
        """What one request does, and what it is told."""
        name, _, key = path.removeprefix("/").partition("/")
        asked = {n: values[0] for n, values in parse_qs(query, keep_blank_values=True).items()}
        kind = {"POST": "delete", "GET": "get" if key else "list"}.get(method, method.lower())
        self.kinds[kind] += 1
        if key.startswith(self.refused) and time.monotonic() < self.refuses_until:
            return 503, {}, _SLOW_DOWN
        bucket = self.buckets.setdefault(name, Bucket())
        match method:
            case "PUT" if key:
                if "if-none-match" in headers and key in bucket.objects:
                    return 412, {}, _EXISTS
                return 200, {"ETag": bucket.put(key, body).etag}, b""
            case "PUT":
                return 200, {}, b""
            case "DELETE":
                bucket.delete(key)
                return 204, {}, b""
            case "POST" if "delete" in asked:
                for found in ElementTree.fromstring(body).iter():
                    if found.tag.endswith("Key"):
                        bucket.delete(found.text or "")
                return 200, {}, b"<DeleteResult></DeleteResult>"
            case "GET" if not key:
                return 200, {"Content-Type": "application/xml"}, bucket.list(asked)
            case "GET" | "HEAD":
                return _read(bucket.objects.get(key), headers.get("range"), method == "HEAD")
        return 501, {}, b"<Error><Code>NotImplemented</Code></Error>"

    def own(self, path: str, query: str) -> bytes:
        """Its own addresses."""
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        told: Any = {
            "kinds": dict(self.kinds),
            "shapes": {},
            "bytes_sent": 0,
            "bytes_received": 0,
            "server_cpu_seconds": time.process_time(),
        }
        match path:
            case "/-load":
                files = [file for file in Path(asked["folder"]).rglob("*") if file.is_file()]
                bucket = self.buckets.setdefault(asked["bucket"], Bucket())
                for file in files:
                    key = f"{asked['prefix']}/{file.relative_to(asked['folder'])}"
                    bucket.put(key, file.read_bytes())
                told = len(files)
            case "/-repeat":
                bucket = self.buckets[asked["bucket"]]
                told = bucket.repeat(asked["folder"], int(asked["count"]))
            case "/-latency":
                self.latency_seconds = float(asked["seconds"])
            case "/-refuse":
                self.refused = asked["prefix"]
                self.refuses_until = time.monotonic() + float(asked["seconds"])
            case "/-forget":
                self.kinds = Counter()
        return json.dumps(told).encode()


def _read(found: Stored | None, span: str | None, is_head: bool) -> Answer:
    if found is None:
        return 404, {}, b"" if is_head else _MISSING
    size = len(found.data)
    told = {"ETag": found.etag, "Last-Modified": formatdate(found.at, usegmt=True)}
    if span is None:
        return 200, {**told, "Content-Length": str(size)}, b"" if is_head else found.data
    first, _, last = span.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size:
        return 416, {"Content-Range": f"bytes */{size}"}, b""
    told["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return 206, told, b"" if is_head else found.data[start:end]


async def _main(host: str, port: int) -> None:
    async with await asyncio.start_server(Server().serve, host, port, limit=2**20) as server:
        await server.serve_forever()


if __name__ == "__main__":
    # The server ends when its stdin does.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    asyncio.run(_main(sys.argv[2], int(sys.argv[4])))
