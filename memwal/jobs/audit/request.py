"""What one may ask of an audit trail."""

from __future__ import annotations

from collections.abc import Sequence
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
    key: Annotated[
        Sequence[tuple[str, str]],
        Option(
            meaning="What happened where rows of this key may have been: its shard, and the base. "
            "The trail has no keys. Bytes as 0x….",
            metavar="K=V",
        ),
    ] = ()
    limit: Annotated[int, Option(meaning="The newest N documents.", least=1, most=100_000)] = 50
