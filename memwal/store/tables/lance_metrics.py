"""What Lance itself measures: its requests to object stores."""

from __future__ import annotations

from typing import Any


def join_lance(meter_provider: Any) -> None:
    """Have it measured beside ours, by Lance's own names. A Lance that can't does not."""
    try:
        from lance.otel import instrument_lance_metrics
    except ImportError:
        return
    instrument_lance_metrics(meter_provider)
