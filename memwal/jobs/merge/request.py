"""What one may ask of a merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option, Shards


@dataclass(frozen=True, kw_only=True)
class MergeBounds:
    """Which generations to merge, and how many of them in a commit."""

    shards: Shards = ()
    until_generation: Annotated[
        int | None,
        Option(meaning="Merge up to this generation.", least=1, form="Until generation"),
    ] = None
    generations_per_commit_max: Annotated[
        int | None, Option(setting="generations_per_commit_max", form="Generations in a commit")
    ] = None
    bytes_per_commit_max: Annotated[
        int | None,
        Option(setting="bytes_per_commit_max", metavar="256MB", form="Bytes in a commit"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class MergeRequest(MergeBounds):
    """A merge, and what it may pass over."""

    allow_holes: Annotated[bool, Option(meaning="Continue past missing generation numbers.")] = (
        False
    )
    allow_reinitialised: Annotated[
        bool, Option(meaning="Take generations that are older than the table's MemWAL index.")
    ] = False
