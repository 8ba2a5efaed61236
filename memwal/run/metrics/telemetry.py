"""Metrics in Prometheus's text format and as a push, by OpenTelemetry.

Only this module imports OpenTelemetry, which takes a fifth of a second and needs the extra
`metrics`; so only `start_metrics` imports this module.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from threading import Lock

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider, ObservableGauge
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from prometheus_client import CollectorRegistry, generate_latest

from memwal.clock import SystemClock
from memwal.model import TableState
from memwal.run.metrics.sink import FRESHNESS_BUCKETS_SECONDS, METRICS, Counts, Metrics, Stage
from memwal.store.tables.lance_calls import join_lance
from memwal.text import one_line, shorten

# Above its default limit of 2,000 series OpenTelemetry sums the rest up without a table's name.
_SERIES_MAX = 1_000_000
_PUSH_SECONDS_MAX = 3.0
_WARNING_CHARACTERS_MAX = 200
_WARNINGS_MAX = 100

Values = list[tuple[Mapping[str, str], float | None]]


class Telemetry(Metrics):
    """Metrics that are kept, shown and pushed."""

    def __init__(
        self,
        *,
        readers: Collection[object],
        registry: CollectorRegistry,
        now_nanos: Callable[[], int] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`registry` is the one that a reader fills; `exposition` shows it."""
        self._states: dict[str, TableState] = {}
        self._lock = Lock()
        self._registry = registry
        self._now_nanos = now_nanos or SystemClock().now_nanos
        self._on_close = on_close
        self.provider = MeterProvider(
            metric_readers=readers, resource=_resource(), shutdown_on_exit=False
        )
        meter = self.provider.get_meter("memwal")
        self._counters = {}
        self._histograms = {}
        for kind, name, _, unit, text in METRICS:
            if kind == "counter":
                self._counters[name] = meter.create_counter(name, unit, text)
            elif kind == "gauge":
                meter.create_observable_gauge(name, [self._observe(name)], unit, text)
            else:
                buckets = FRESHNESS_BUCKETS_SECONDS
                self._histograms[name] = meter.create_histogram(
                    name, unit, text, explicit_bucket_boundaries_advisory=buckets
                )

    def record_state(self, table: str, state: TableState) -> None:
        """Record how the table stands now, in place of what was known."""
        self._states[table] = state

    def forget_table(self, table: str) -> None:
        """Drop what is known of a table that is not looked at any more."""
        self._states.pop(table, None)

    def record_freshness(self, stage: Stage, seconds: float) -> None:
        """Record how long after its flush a generation was merged or indexed."""
        # The times are of two hosts' clocks: a merge that seems to precede its flush counts as 0.
        self._histograms["memwal_freshness_seconds"].record(max(0.0, seconds), {"stage": stage})

    def record_worker_replaced(self, reason: str) -> None:
        """Count a replaced worker process."""
        self._counters["memwal_worker_replacements_total"].add(1, {"reason": reason})

    def add(self, counts: Counts) -> None:
        """Raise counters."""
        for (name, labels), value in counts.items():
            self._counters[name].add(value, {key: _label(text) for key, text in labels})

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format."""
        with self._lock:  # concurrent collections would take each other's values
            return generate_latest(self._registry)

    def close(self) -> None:
        """Push what is to be pushed, within a few seconds, and end."""
        self.provider.shutdown(timeout_millis=_PUSH_SECONDS_MAX * 1000)
        self._on_close()

    def _observe(self, name: str) -> Callable[[CallbackOptions], list[Observation]]:
        measure = _GAUGES.get(name) or partial(_take_field, name.removeprefix("memwal_"))

        def observe(_: CallbackOptions) -> list[Observation]:
            now = self._now_nanos()
            return [
                Observation(value, {"table": _label(table), **labels})
                for table, state in list(self._states.items())
                for labels, value in measure(state, now)
                if value is not None
            ]

        return observe


def start(pushed: bool, warn: Callable[[str], None]) -> Telemetry:
    """Metrics that can be shown, and are `pushed` if asked."""
    log = _Log(warn)
    registry = CollectorRegistry()
    readers: list[object] = [make_shown_reader(registry)]
    if pushed:
        names = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT")
        is_set = any(os.environ.get(name) for name in names)
        exporter = OTLPMetricExporter(timeout=None if is_set else _PUSH_SECONDS_MAX)
        readers.append(PeriodicExportingMetricReader(exporter, cardinality_limits=_LIMITS))
    metrics = Telemetry(readers=readers, registry=registry, on_close=log.close)
    join_lance(metrics.provider)
    return metrics


def make_shown_reader(registry: CollectorRegistry) -> PrometheusMetricReader:
    """A reader that puts metrics into the registry under the names in `METRICS`."""
    return PrometheusMetricReader(
        disable_target_info=True,
        scope_info_enabled=False,
        registry=registry,
        cardinality_limits=_LIMITS,
    )


class _Log(logging.Handler):
    """Turns OpenTelemetry's log of failed pushes into warnings, each text once."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._cause = ""
        self._said: set[str] = set()
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self)
        self._logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on an error, with the last warning about the attempts before it."""
        text = shorten(one_line(record.getMessage()), _WARNING_CHARACTERS_MAX)
        if record.levelno < logging.ERROR:
            self._cause = f" ({text})"
        elif text not in self._said and len(self._said) < _WARNINGS_MAX:
            self._said.add(text)
            self._warn(f"telemetry was not sent: {text}{self._cause}")
            self._cause = ""

    def close(self) -> None:
        """Leave OpenTelemetry's log as it was."""
        self._logger.removeHandler(self)
        self._logger.propagate = True
        super().close()


def _resource() -> Resource:
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
    named = Resource({"service.name": "memwal"})
    return named.merge(OTELResourceDetector().detect())


def _label(text: str) -> str:
    """The text with what UTF-8 can't hold escaped: a path may consist of any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _take_field(name: str, s: TableState, now_nanos: int) -> Values:
    return [({}, getattr(s, name))]


def _age(since_nanos: int | None, now_nanos: int) -> float | None:
    return None if since_nanos is None else max(0.0, (now_nanos - since_nanos) / 1e9)


def _age_of_pending(s: TableState, now_nanos: int) -> Values:
    return [({}, _age(s.oldest_pending_at_nanos, now_nanos) if s.pending_generations != 0 else 0.0)]


def _age_of_unflushed(s: TableState, now_nanos: int) -> Values:
    return [({}, _age(s.oldest_unflushed_at_nanos, now_nanos) if s.unflushed_shards != 0 else 0.0)]


def _age_of_unindexed(s: TableState, now_nanos: int) -> Values:
    nothing = s.pending_generations is not None and not any(s.index_lag_generations.values())
    return [({}, 0.0 if nothing else _age(s.oldest_unindexed_at_nanos, now_nanos))]


def _failures(s: TableState, now_nanos: int) -> Values:
    return [({"reason": s.reason or "unknown"}, s.failures or None)]


# All other gauges are fields of the same name.
_GAUGES: Mapping[str, Callable[[TableState, int], Values]] = {
    "memwal_oldest_pending_seconds": _age_of_pending,
    "memwal_oldest_unindexed_seconds": _age_of_unindexed,
    "memwal_unflushed_seconds": _age_of_unflushed,
    "memwal_index_lag_generations": lambda s, now: [
        ({"index": _label(name)}, lag) for name, lag in s.index_lag_generations.items()
    ],
    "memwal_lease_held_seconds": lambda s, now: [({}, _age(s.lease_held_at_nanos, now))],
    "memwal_last_backup_timestamp_seconds": lambda s, now: [
        ({}, None if s.last_backup_at_nanos is None else s.last_backup_at_nanos / 1e9)
    ],
    "memwal_cursor_lag_versions": lambda s, now: [
        ({"cursor": _label(c.name)}, max(0, s.version - c.version)) for c in s.cursors
    ],
    "memwal_cursor_age_seconds": lambda s, now: [
        ({"cursor": _label(c.name)}, _age(c.moved_at_nanos, now)) for c in s.cursors
    ],
    "memwal_consecutive_failures": _failures,
    "memwal_last_look_timestamp_seconds": lambda s, now: [({}, s.looked_at_nanos / 1e9)],
}
_LIMITS = {ObservableGauge: _SERIES_MAX}
