"""An S3 server that tells how many requests it got, by kind: Lance's own are in them too."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.s3server import S3Server


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the server saw since it was told to forget. `kinds` are get, head, list, put, post and
    delete, `shapes` the requests without ids and numbers.
    """

    kinds: dict[str, int]
    shapes: dict[str, int]
    bytes_sent: int
    bytes_received: int
    server_cpu_seconds: float

    @property
    def requests(self) -> int:
        """All kinds together."""
        return sum(self.kinds.values())

    @property
    def told(self) -> str:
        """The kinds in words."""
        return ", ".join(f"{kind} {count}" for kind, count in sorted(self.kinds.items()))

    @property
    def most(self) -> str:
        """The shapes that came most often, in words."""
        shapes = sorted(self.shapes.items(), key=lambda item: -item[1])[:4]
        return ", ".join(f"{count} {shape}" for shape, count in shapes)


class CountedS3(S3Server):
    """The server; objects are put into it by itself, so that a case need not wait for requests."""

    program = (Path(__file__).parent / "s3_server.py").read_text()
    probed = "/-counts"

    @property
    def arguments(self) -> list[str]:
        """The storage options as memwal's command takes them."""
        pairs = self.storage_options.items()
        return [word for name, value in pairs for word in ("--storage-option", f"{name}={value}")]

    def place(self, table: Path) -> str:
        """Store a local table in a new bucket; returns its address there."""
        bucket = self.make_bucket()
        self.load(table, bucket, "t")
        return f"s3://{bucket}/t"

    def load(self, folder: Path, bucket: str, prefix: str) -> None:
        """Store every file below a local folder."""
        self._ask("load", folder=str(folder), bucket=bucket, prefix=prefix)

    def copy(self, bucket: str, origin: str, targets: Sequence[str]) -> None:
        """Copy all objects below a folder to below others."""
        self._ask("copy", bucket=bucket, origin=origin, targets=targets)

    def pad(self, uri: str, folders: Mapping[str, int], names: Sequence[str]) -> None:
        """Let each folder of a table have so many objects, with old ones of these names beside
        those stored. No folders: without them again.
        """
        bucket, _, table = uri.removeprefix("s3://").partition("/")
        counts = {f"{table}/{folder}": count for folder, count in folders.items()}
        self._ask("pad", bucket=bucket, folders=counts, names=names)

    def refuse(self, prefix: str, seconds: float) -> None:
        """Answer requests for objects below a prefix with SlowDown for so long."""
        self._ask("refuse", prefix=f"{prefix}/", seconds=seconds)

    def latency(self, seconds: float) -> None:
        """From here on each answer takes so much longer, without using the processor."""
        self._ask("latency", seconds=seconds)

    def forget(self) -> None:
        """Start the counts anew."""
        self._ask("forget")

    def seen(self) -> Seen:
        """The counts."""
        return Seen(**self._ask("counts"))

    def _ask(self, name: str, **values: Any) -> Any:
        data = json.dumps(values).encode()
        with urllib.request.urlopen(f"{self.endpoint}/-{name}", data, timeout=600) as reply:
            return json.load(reply)
