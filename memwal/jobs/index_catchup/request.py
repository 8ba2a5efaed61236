"""What one may ask of an index catch-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class CatchupRequest:
    """Which indexes to catch up, and how."""

    indexes: Annotated[
        Sequence[str],
        Option(meaning="Only these indexes.", flag="index", metavar="NAME"),
    ] = ()
    method: Annotated[
        Literal["auto", "append", "segments", "retrain"],
        Option(meaning="How: by cost and size, or always so."),
    ] = "auto"
