"""What one may ask of a status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from memwal.options import Consistency, Option


@dataclass(frozen=True, kw_only=True)
class StatusRequest:
    """Where to look, what to wait for, and what counts as a failure."""

    consistency: Annotated[
        Consistency,
        Option(
            meaning="Shards from their manifests, or from the shard snapshot: far fewer requests "
            "where they are many, and nothing that was flushed since it was taken."
        ),
    ] = "latest"
    fail_if: Annotated[
        Sequence[str],
        Option(
            meaning="Exit with code 3 if this holds for a table, such as 'oldest_pending_seconds > "
            "5m' or 'pending_bytes > 1GiB'.",
            metavar="CONDITION",
        ),
    ] = ()
    until: Annotated[
        Literal["merged", "indexed", "collected"] | None,
        Option(meaning="First wait until that is true of all that is flushed now."),
    ] = None
    timeout_seconds: Annotated[
        float, Option(meaning="Until when; then exit with code 4.", metavar="10m")
    ] = 600.0
    generation: Annotated[
        Sequence[tuple[str, str]],
        Option(meaning="With --until, wait only for these.", metavar="SHARD=N"),
    ] = ()
    live: Annotated[bool, Option(meaning="Show it live, the worst table first, until Ctrl-C.")] = (
        False
    )
    source: Annotated[
        str | None,
        Option(
            meaning="Show what the watch sees that serves --metrics-port there, in place of "
            "tables.",
            flag="from",
            metavar="http://HOST:PORT",
        ),
    ] = None
    every_seconds: Annotated[
        float, Option(meaning="With --live, how often to look.", metavar="2s", least=0.1)
    ] = 2.0
