"""What one may ask of an audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """Which documents of the trail to show."""

    path: Annotated[
        str | None,
        Option(
            meaning="What happened to this object or folder of the table, or its version's files.",
            metavar="P",
        ),
    ] = None
    run: Annotated[str | None, Option(meaning="All that this run did.", metavar="ID")] = None
    limit: Annotated[int, Option(meaning="The newest N documents.", least=1, most=100_000)] = 50
