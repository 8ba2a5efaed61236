"""What one may ask of an erasure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from memwal.jobs.garbage.request import Retention
from memwal.jobs.rescue.request import Yes
from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(Retention):
    """How long what holds the rows may stay."""

    execute: Annotated[
        bool, Option(meaning="Erase; else, or in a dry run, list what holds the keys.")
    ] = False
    through_tags: Annotated[
        bool,
        Option(
            meaning="Delete the tags and checkpoints that keep the rows. Without it they stop the "
            "erasure.",
        ),
    ] = False
    yes: Yes = False


@dataclass(frozen=True, kw_only=True)
class EraseRequest(ResumeRequest):
    """Whose rows to erase, one key's or those of a file, and how long what holds them may stay."""

    key: Annotated[
        Sequence[str],
        Option(
            meaning="The key of the row to erase; once for each key column. Bytes as 0x….",
            metavar="K=V",
        ),
    ] = ()
    keys: Annotated[
        str | None,
        Option(
            meaning="A file with many keys: CSV with a header, or Parquet.",
            metavar="FILE",
        ),
    ] = None
