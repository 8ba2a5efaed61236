"""An S3 server that tells how many requests it got, by kind: Lance's own are in them too."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.s3server import S3Server


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the server saw since it was told to forget. `kinds` are get, head, list, put, delete."""

    kinds: dict[str, int]
    shapes: dict[str, int]
    bytes_sent: int
    bytes_received: int
    server_cpu_seconds: float

    @property
    def requests(self) -> int:
        """All kinds together."""
        return sum(self.kinds.values())


class CountedS3(S3Server):
    """The server; objects are put into it by itself, so that a case need not wait for requests."""

    program = (Path(__file__).parent / "counting_server.py").read_text()

    @property
    def arguments(self) -> list[str]:
        """The storage options as memwal's command takes them."""
        pairs = self.storage_options.items()
        return [word for name, value in pairs for word in ("--storage-option", f"{name}={value}")]

    def load(self, folder: Path, bucket: str, prefix: str) -> int:
        """Store every file below a local folder, inside the server; returns how many."""
        return int(self._ask("load", folder=folder, bucket=bucket, prefix=prefix))

    def copies(self, bucket: str, origin: str, targets: Sequence[str]) -> int:
        """Copy all objects below `origin/` to each target, inside the server."""
        return int(
            self._ask(
                "copy", bucket=bucket, **{"from": f"{origin}/", "to": [f"{t}/" for t in targets]}
            )
        )

    def pad(self, bucket: str, below: str, fewest: int, most: int) -> int:
        """Let listings of shards' files show `fewest` to `most` a shard, with WAL entries that are
        not there; returns how many in all. 0 and 0 for what is stored.
        """
        return int(self._ask("pad", bucket=bucket, below=f"{below}/", objects=[fewest, most]))

    def forget(self) -> None:
        """Start the counts anew."""
        self._ask("forget")

    def seen(self) -> Seen:
        """The counts."""
        return Seen(**self._ask("counts"))

    def latency(self, seconds: float) -> None:
        """From here on each answer takes so much longer, without using the processor."""
        self._ask("latency", seconds=seconds)

    def _ask(self, name: str, **values: Any) -> Any:
        query = urllib.parse.urlencode(values, doseq=True)
        with urllib.request.urlopen(f"{self.endpoint}/-{name}?{query}", timeout=600) as reply:
            return json.load(reply)


class QuickS3(CountedS3):
    """A server that is not what is measured; it counts kinds only, and pads and copies nothing."""

    program = (Path(__file__).parent / "quick_server.py").read_text()

    def refuse(self, prefix: str, seconds: float) -> None:
        """Answer requests for objects below a prefix with SlowDown for so long."""
        self._ask("refuse", prefix=f"{prefix}/", seconds=seconds)

    def repeat(self, bucket: str, folder: str, count: int) -> int:
        """Have so many folders like one whose name ends with 1; returns their objects in all."""
        return int(self._ask("repeat", bucket=bucket, folder=folder, count=count))
