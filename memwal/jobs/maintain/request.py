"""What one may ask of `maintain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from memwal.jobs.garbage.request import DeletingRequest
from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class MaintainRequest(DeletingRequest):
    """All jobs in a row. For `compaction`, True is `always` and False `never`."""

    compaction: Annotated[
        bool | Literal["auto", "always", "never"] | None,
        Option(
            meaning="Also rewrite small fragments; with auto, where advised. Default: as "
            "configured, else not (--no-compaction).",
            metavar="[auto]",
        ),
    ] = None

    @property
    def compaction_mode(self) -> Literal["auto", "always", "never"] | None:
        """The mode that is asked for; None leaves it to a table's configuration."""
        if isinstance(self.compaction, bool):
            return "always" if self.compaction else "never"
        return self.compaction
