"""How tables stand by the metrics that a watch serves; neither they nor their stores are asked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from memwal.errors import StoreUnavailable, Usage
from memwal.jobs.status.plan import Condition
from memwal.jobs.status.report import (
    AttentionReport,
    StatusTableReport,
    judge_conditions,
    sum_up_conditions,
)
from memwal.report import DONE, JobReport
from memwal.run.reports import job_report
from memwal.text import format_age, mask_address

_BYTES_MAX = 64 * 1024 * 1024
_SECONDS_MAX = 10.0
_SAMPLE = re.compile(r"(memwal_\w+)(?:\{(.*)\})? +(\S+)(?: +-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_COUNTS = (
    *("pending_generations", "pending_bytes", "index_lag_generations"),
    *("reclaimable_bytes", "abandoned_shards"),
)
_AGES = ("oldest_pending_seconds", "oldest_unindexed_seconds", "unflushed_seconds")


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric, as Prometheus's text has it."""

    name: str
    labels: Mapping[str, str]
    value: float


def report_watch(address: str, conditions: Sequence[Condition] = ()) -> JobReport:
    """The tables of the watch that serves its metrics at the address.

    Raises Usage for an address where no watch can be, and StoreUnavailable.
    """
    for condition in conditions:
        if condition.word == "backup_age_seconds":
            raise Usage(f"--fail-if {condition.text}: a watch's metrics don't tell that")
    tables = [judge_conditions(t, conditions) for t in read_tables(_read_metrics(address))]
    return sum_up_conditions(job_report("status", tables, otherwise=DONE))


def _read_metrics(address: str) -> list[Sample]:
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        can_be = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if not can_be or "@" in parts.netloc:
            raise ValueError
    except ValueError:
        raise Usage(f"--from {mask_address(address)}: expected http://HOST:PORT") from None
    path = parts.path if parts.path.strip("/") else "/metrics"
    url = parts._replace(path=path, fragment="").geturl()
    try:
        with urlopen(url, timeout=_SECONDS_MAX) as answer:
            found = answer.read(_BYTES_MAX + 1)
    except (OSError, HTTPException, ValueError) as error:
        why = error.reason if type(error) is URLError else error
        raise StoreUnavailable(f"{mask_address(url)}: {why}") from None
    if len(found) > _BYTES_MAX or b"memwal_" not in found:
        raise Usage(
            f"{mask_address(url)} has no metrics of a watch: give what --metrics-port printed"
        )
    return parse_metrics(bytes(found).decode("utf-8", "replace"))


def parse_metrics(text: str) -> list[Sample]:
    """Our samples in Prometheus's text; lines that can't be understood are left out."""
    found = []
    for line in text.split("\n"):
        if match := _SAMPLE.fullmatch(line.rstrip("\r")):
            labels = {
                name: re.sub(r"\\.", lambda found: _ESCAPED.get(found[0], found[0]), value)
                for name, value in _LABEL.findall(match[2] or "")
            }
            try:
                value = float(match[3])
            except ValueError:
                continue
            if math.isfinite(value):
                found.append(Sample(match[1], labels, value))
    return found


def read_tables(samples: Iterable[Sample]) -> list[StatusTableReport]:
    """Each table as far as metrics tell. An index's lag is that of the worst one."""
    found: dict[str, dict[str, Sample]] = {}
    for sample in samples:
        if (table := sample.labels.get("table")) is not None:
            known = found.setdefault(table, {})
            before = known.get(sample.name, sample)
            known[sample.name] = max(before, sample, key=lambda s: s.value)
    return [_read_table(table, found[table]) for table in sorted(found)]


def _read_table(table: str, found: Mapping[str, Sample]) -> StatusTableReport:
    values = {name.removeprefix("memwal_"): sample.value for name, sample in found.items()}
    counts: dict[str, Any] = {name: int(values[name]) for name in _COUNTS if name in values}
    if "pending_generations" in counts:  # it was looked at: no index, no lag
        counts.setdefault("index_lag_generations", 0)
    failed = found.get("memwal_consecutive_failures")
    told = [] if failed is None else [f"{failed.labels.get('reason')}, {failed.value:.0f} times"]
    return StatusTableReport(
        table=table,
        outcome=DONE,
        **counts,
        oldest_pending_seconds=values.get("oldest_pending_seconds"),
        unflushed_seconds=values.get("unflushed_seconds"),
        attention=tuple(AttentionReport(what=what) for what in (*told, *_find(values))),
    )


def _find(values: Mapping[str, float]) -> Iterator[str]:
    if values.get("last_look_timestamp_seconds") == 0:
        yield "not looked at yet"
    lag = max(values.get(name, 0.0) for name in _AGES)
    if lag > (target := values.get("freshness_target_seconds", math.inf)):
        yield f"late: {format_age(lag)} behind, of {format_age(target)}"
    if (held := values.get("lease_held_seconds")) is not None:
        yield f"another run has held the lease for {format_age(held)}"
