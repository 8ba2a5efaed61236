"""Starts metrics and traces when they are asked for; otherwise nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from memwal.errors import Unsupported
from memwal.run.metrics.sink import NO_METRICS, Metrics

SIGNALS = ("METRICS", "TRACES")
"""The signals that can be pushed, as OpenTelemetry's variables name them."""


def start_metrics(*, shown: bool, warn: Callable[[str], None]) -> Metrics:
    """Metrics when they are `shown` (`exposition`) or OTEL_* variables ask for a push.

    Otherwise `NO_METRICS`. Raises Unsupported when they are to be shown and OpenTelemetry is not
    installed; for a push that is only a warning, as is a push that fails.
    """
    signals = {signal for signal in SIGNALS if _is_asked_for(signal)}
    if not shown and not signals:
        return NO_METRICS
    try:
        from memwal.run.metrics import telemetry
    except ImportError as error:
        text = f"metrics need OpenTelemetry: pip install 'lance-memwal[metrics]' ({error})"
        if shown:
            raise Unsupported("MW-E04", text) from error
        warn(f"OTEL_* variables ask for telemetry and nothing is sent: {text}")
        return NO_METRICS
    return telemetry.start(signals, warn)


def _is_asked_for(signal: str) -> bool:
    """Whether OpenTelemetry's environment variables ask for a push of the signal."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporters := os.environ.get(f"OTEL_{signal}_EXPORTER", "").strip():
        return "otlp" in re.split(r"\s*,\s*", exporters)
    places = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(os.environ.get(name, "").strip() for name in places)
