"""What `top` reads: tables and their leases, and the metrics of a watch."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http.client import HTTPException
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from memwal.config import ResolvedTable
from memwal.errors import MemWalError, StoreUnavailable, Usage, unexpected
from memwal.jobs.top.apply import Scrape
from memwal.jobs.top.plan import Sample
from memwal.jobs.watch.plan import Look
from memwal.jobs.watch.store import StoredLooks
from memwal.model import LeaseClaim
from memwal.ports import Clock
from memwal.text import mask_address

_BYTES_MAX = 64 * 1024 * 1024
_SECONDS_MAX = 10.0
_SAMPLE = re.compile(r"(memwal_\w+)(?:\{(.*)\})? +(\S+)(?: +-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


class LeasedLooks(StoredLooks):
    """The looks of a watch, each with one at the table's lease."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.leases: dict[str, LeaseClaim | None] = {}

    def look(self, table: ResolvedTable) -> Look:
        """Look at a table and its lease now. Raises MemWalError."""
        found = super().look(table)
        objects = self._find(table).objects
        before = objects.counts.as_dict()
        self.leases[table.name] = self._open_leases(table).glance()
        after = objects.counts.as_dict()
        requests = {name: n + after[name] - before[name] for name, n in found.requests.items()}
        return replace(found, requests=requests)


class MetricsReader:
    """The Scraper port over HTTP, with a thread for each reading."""

    def __init__(self, address: str) -> None:
        """`address` is where a watch serves its metrics. Raises Usage for what can't be one."""
        given = address if "://" in address else f"http://{address}"
        try:
            parts = urlsplit(given)
            can_be = (
                parts.scheme in ("http", "https")
                and parts.hostname
                and "@" not in parts.netloc
                and parts.port != 0
            )
        except ValueError:
            can_be = False
        if not can_be:
            raise Usage(f"--from {mask_address(address)}: expected http://HOST:PORT")
        path = parts.path if parts.path.strip("/") else "/metrics"
        self._url = parts._replace(path=path, fragment="").geturl()
        self.place = mask_address(self._url)
        self._ended: queue.SimpleQueue[Scrape] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin to read; returns at once."""
        threading.Thread(target=self._run, daemon=True, name="memwal-metrics-look").start()

    def collect(self) -> Sequence[Scrape]:
        """What has been read."""
        return [self._ended.get() for _ in range(self._ended.qsize())]

    def _run(self) -> None:
        try:
            self._ended.put(Scrape(parse_metrics(self._read())))
        except MemWalError as error:
            self._ended.put(Scrape(error=error))
        except BaseException as error:
            self._ended.put(Scrape(error=unexpected(error)))

    def _read(self) -> str:
        try:
            with urlopen(self._url, timeout=_SECONDS_MAX) as answer:
                found = answer.read(_BYTES_MAX + 1)
        except (OSError, HTTPException, ValueError) as error:
            why = error.reason if type(error) is URLError else error
            raise StoreUnavailable(f"{self.place}: {why}") from None
        if len(found) > _BYTES_MAX or b"memwal_" not in found:
            raise Usage(f"{self.place} has no metrics of a watch: give what --metrics-port printed")
        return bytes(found).decode("utf-8", "replace")


def parse_metrics(text: str) -> list[Sample]:
    """Our samples in Prometheus's text; lines that can't be understood are left out."""

    def read(labels: str | None) -> Mapping[str, str]:
        return {
            name: re.sub(r"\\.", lambda found: _ESCAPED.get(found[0], found[0]), value)
            for name, value in _LABEL.findall(labels or "")
        }

    found = []
    for line in text.split("\n"):
        if match := _SAMPLE.fullmatch(line.rstrip("\r")):
            try:
                found.append(Sample(match[1], read(match[2]), float(match[3])))
            except ValueError:
                continue
    return found
