"""What one may ask of a watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class WatchRequest:
    """How fresh to keep tables, for how long, and where to tell of it."""

    freshness_seconds: Annotated[
        float | None,
        Option(
            meaning="How old rows may become, from their put, until they are merged and indexed.",
            metavar="60s",
            setting="freshness",
        ),
    ] = None
    retention_seconds: Annotated[
        float | None,
        Option(
            meaning="How long versions stay; what nothing needs is then deleted, also WAL. Of this "
            "and what is configured, the longer holds; without either nothing is deleted.",
            metavar="7d",
            setting="retention",
        ),
    ] = None
    every_seconds: Annotated[
        float | None,
        Option(meaning="How often to look at a table that changes.", metavar="5s"),
    ] = None
    for_seconds: Annotated[float | None, Option(meaning="End after this long.", metavar="10m")] = (
        None
    )
    once: Annotated[bool, Option(meaning="Bring every table up to date once, and end.")] = False
    metrics_port: Annotated[
        int | None,
        Option(
            meaning="Serve /metrics and /healthz on this port; on a free one with 0.",
            least=0,
            most=65535,
        ),
    ] = None
    metrics_host: Annotated[
        str | None,
        Option(meaning="Serve on this address, not only on loopback.", metavar="ADDRESS"),
    ] = None
