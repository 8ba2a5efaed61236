"""An S3 server in memory that takes little processor time, and counts every request.

It knows what boto3, obstore and Lance ask for: puts with `If-None-Match`, also in parts, gets of
ranges, listings, deletes. Nothing is authorized. Addresses that begin with `/-` are its own, for
`CountedS3`. Runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from uuid import uuid4
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_PAGE_OBJECTS = 1000
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>fewer requests, please</Message></Error>"
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>it is not there</Message></Error>"
_EXISTS = b"<Error><Code>PreconditionFailed</Code><Message>it is there</Message></Error>"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"[0-9a-f]{8,}|[01]{16,}|[0-9]+")

Answer = tuple[int, dict[str, str], bytes]


@dataclass(slots=True)
class Stored:
    """An object."""

    data: bytes
    etag: str
    at: float


_PADDING = Stored(data=bytes(900), etag='"0"', at=1_577_836_800.0)


@dataclass(slots=True)
class Bucket:
    """Objects by key, and the keys in order."""

    objects: dict[str, Stored] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def put(self, key: str, data: bytes) -> Stored:
        """Store an object in place of what is there."""
        if key not in self.objects:
            insort(self.keys, key)
        self.objects[key] = Stored(data, _etag(data), time.time())
        return self.objects[key]

    def copy(self, origin: str, targets: Iterable[str]) -> None:
        """Copy all below a folder to others."""
        found = [key for key in self.keys if key.startswith(f"{origin}/")]
        for target in targets:
            for key in found:
                self.objects[target + key.removeprefix(origin)] = self.objects[key]
        self.keys = sorted(self.objects)

    def pad(self, folders: Mapping[str, int], names: Sequence[str]) -> None:
        """Fill folders with old objects of these names, until each has so many. Those of before
        are taken out first.
        """
        self.objects = {k: stored for k, stored in self.objects.items() if stored is not _PADDING}
        self.keys = sorted(self.objects)
        for folder, count in folders.items():
            there = bisect_left(self.keys, f"{folder}/\U0010ffff") - bisect_left(self.keys, folder)
            self.objects |= {f"{folder}/{name}": _PADDING for name in names[: count - there]}
        self.keys = sorted(self.objects)

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


def _etag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


class Server:
    """Everything that is stored, and what was asked for."""

    def __init__(self) -> None:
        self.buckets: defaultdict[str, Bucket] = defaultdict(Bucket)
        self.uploads: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        self.latency_seconds = 0.0
        self.refused, self.refuses_until = "", 0.0
        self.forget()

    def forget(self) -> None:
        """Start the counts anew."""
        self.kinds: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.sent = self.received = 0
        self.cpu_seconds = time.process_time()

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
                if path.startswith("/-"):
                    answer: Answer = 200, {}, self.own(path, json.loads(body or b"{}"))
                else:
                    # The answer is that of the moment when the request arrives in half that time.
                    await asyncio.sleep(self.latency_seconds / 2)
                    answer = self.answer(method, unquote(path), query, headers, body)
                    await asyncio.sleep(self.latency_seconds / 2)
                    self.sent += len(body)
                    self.received += len(answer[2])
                status, more, data = answer
                told = {"Content-Length": len(data), "Date": formatdate(usegmt=True), **more}
                lines = [f"HTTP/1.1 {status} -", *(f"{name}: {told[name]}" for name in told)]
                writer.write("\r\n".join([*lines, "\r\n"]).encode() + data)
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
        is_list, is_delete = method == "GET" and not key, method == "POST" and "delete" in asked
        self.kinds["list" if is_list else "delete" if is_delete else method.lower()] += 1
        listed = f"?{asked['prefix']}" if is_list and "prefix" in asked else ""
        self.shapes[f"{method} {_NUMBER.sub('N', _UUID.sub('UUID', key + listed))}"] += 1
        if key.startswith(self.refused) and time.monotonic() < self.refuses_until:
            return 503, {}, _SLOW_DOWN
        bucket, upload = self.buckets[name], asked.get("uploadId")
        if method in ("PUT", "POST") and "if-none-match" in headers and key in bucket.objects:
            return 412, {}, _EXISTS
        match method:
            case "PUT" if upload:
                self.uploads[upload][int(asked["partNumber"])] = body
                return 200, {"ETag": _etag(body)}, b""
            case "POST" if "uploads" in asked:
                begun = f"<Begun><UploadId>{uuid4().hex}</UploadId></Begun>"
                return 200, {}, begun.encode()
            case "POST" if upload:
                parts = self.uploads.pop(upload)
                stored = bucket.put(key, b"".join(parts[number] for number in sorted(parts)))
                return 200, {}, f"<Done><ETag>{escape(stored.etag)}</ETag></Done>".encode()
            case "DELETE" if upload:
                self.uploads.pop(upload, None)
                return 204, {}, b""
            case "PUT" if key:
                return 200, {"ETag": bucket.put(key, body).etag}, b""
            case "PUT":
                return 200, {}, b""
            case "DELETE":
                bucket.delete(key)
                return 204, {}, b""
            case "POST" if "delete" in asked:
                done = b""
                for found in ElementTree.fromstring(body).iter():
                    if found.tag.endswith("Key"):
                        bucket.delete(found.text or "")
                        done += f"<Deleted><Key>{escape(found.text or '')}</Key></Deleted>".encode()
                return 200, {}, b"<DeleteResult>%s</DeleteResult>" % done
            case "GET" if not key:
                return 200, {"Content-Type": "application/xml"}, bucket.list(asked)
            case "GET" | "HEAD":
                return _read(bucket.objects.get(key), headers.get("range"), method == "HEAD")
        return 501, {}, b"<Error><Code>NotImplemented</Code></Error>"

    def own(self, path: str, asked: dict[str, Any]) -> bytes:
        """Its own addresses."""
        bucket = self.buckets[asked.pop("bucket", "")]
        match path:
            case "/-load":
                folder = Path(asked["folder"])
                for file in filter(Path.is_file, folder.rglob("*")):
                    bucket.put(f"{asked['prefix']}/{file.relative_to(folder)}", file.read_bytes())
            case "/-copy":
                bucket.copy(**asked)
            case "/-pad":
                bucket.pad(**asked)
            case "/-latency":
                self.latency_seconds = asked["seconds"]
            case "/-refuse":
                self.refused = asked["prefix"]
                self.refuses_until = time.monotonic() + asked["seconds"]
            case "/-forget":
                self.forget()
        told = {
            "kinds": self.kinds,
            "shapes": self.shapes,
            "bytes_sent": self.sent,
            "bytes_received": self.received,
            "server_cpu_seconds": time.process_time() - self.cpu_seconds,
        }
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
