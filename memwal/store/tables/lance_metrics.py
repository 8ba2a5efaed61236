"""The metrics of Lance itself: its requests to object stores."""

from __future__ import annotations

from typing import Any


def join_lance(meter_provider: Any) -> None:
    """Export Lance's metrics beside ours, under Lance's names, if this Lance has any."""
    try:
        from lance.otel import instrument_lance_metrics
    except ImportError:
        return
    instrument_lance_metrics(meter_provider)
