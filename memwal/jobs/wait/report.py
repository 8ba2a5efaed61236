"""What `memwal wait` reports."""

from __future__ import annotations

from pydantic import Field

from memwal.report import TableReport


class WaitTableReport(TableReport):
    """The table of `wait`. `missing` tells how far each shard is that is not at its target."""

    until: str
    reached: bool = False
    target: dict[str, int] = Field(default_factory=dict)
    missing: dict[str, int] = Field(default_factory=dict)
