"""Starts metrics when they are asked for; otherwise nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from memwal.errors import Unsupported
from memwal.run.metrics.sink import NO_METRICS, Metrics


def start_metrics(*, shown: bool, warn: Callable[[str], None]) -> Metrics:
    """Metrics when they are `shown` (`exposition`) or OTEL_* variables ask for a push.

    Otherwise `NO_METRICS`. Raises Unsupported when they are to be shown and OpenTelemetry is not
    installed; for a push that is only a warning, as is a push that fails.
    """
    pushed = _is_push_asked_for()
    if not (shown or pushed):
        return NO_METRICS
    try:
        from memwal.run.metrics import telemetry
    except ImportError as error:
        text = f"metrics need OpenTelemetry: pip install 'lance-memwal[metrics]' ({error})"
        if shown:
            raise Unsupported("MW-E04", text) from error
        warn(f"OTEL_* variables ask for telemetry and nothing is sent: {text}")
        return NO_METRICS
    return telemetry.start(pushed, warn)


def _is_push_asked_for() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporters := os.environ.get("OTEL_METRICS_EXPORTER", "").strip():
        return "otlp" in re.split(r"\s*,\s*", exporters)
    places = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    return any(os.environ.get(name, "").strip() for name in places)
