"""What one may ask of `memwal read` and `memwal changes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from memwal.errors import Usage
from memwal.options import Consistency, Option

SHOWN_ROWS = 20
"""How many rows people are shown who set no limit."""

Columns = Annotated[Sequence[str] | None, Option(meaning="Default: all.", metavar="A,B")]
Limit = Annotated[
    int | None,
    Option(
        meaning=f"Default: {SHOWN_ROWS} for people, all with --json or --output.",
        metavar="N",
        least=0,
    ),
]
Output = Annotated[
    str | None,
    Option(meaning="Write rows to a .parquet, .arrow or .csv file.", metavar="FILE"),
]


@dataclass(frozen=True, kw_only=True)
class ReadAsked:
    """A merging read, with texts as they were typed; `ReadRequest` is what they mean."""

    columns: Columns = None
    filter: Annotated[
        str | None,
        Option(meaning="Lance's SQL: `Name` is a column, 'text' a text.", metavar="SQL"),
    ] = None
    limit: Limit = None
    version: Annotated[int | None, Option(meaning="Default: the latest.", least=1)] = None
    merged_only: Annotated[
        bool | None,
        Option(
            meaning="With --version: without, or with, generations that are listed now (default: "
            "with, and a warning)."
        ),
    ] = None
    checkpoint: Annotated[
        str | None,
        Option(meaning="The table as of that checkpoint, pending rows included.", metavar="NAME"),
    ] = None
    key: Annotated[
        Sequence[str],
        Option(
            meaning="The row with this key; once for each key column. Bytes as 0x….", metavar="K=V"
        ),
    ] = ()
    nearest: Annotated[
        str | None, Option(meaning="Rows with the nearest vectors.", metavar="COLUMN=[…]")
    ] = None
    k: Annotated[
        int | None,
        Option(
            meaning="How many (default: 10). More with --limit find more of the nearest.", least=1
        ),
    ] = None
    metric: Annotated[
        str | None, Option(meaning="Default: the index's.", metavar="l2|cosine|dot")
    ] = None
    nprobes: Annotated[int | None, Option(meaning="Partitions to search.", least=1)] = None
    search: Annotated[
        str | None,
        Option(meaning="Rows whose text has these words, best first.", metavar="COLUMN=TEXT"),
    ] = None
    operator: Annotated[
        str | None, Option(meaning="Any of the words (default), or all.", metavar="or|and")
    ] = None
    phrase: Annotated[bool, Option(meaning="The words must follow one another.")] = False
    with_wal: Annotated[bool, Option(meaning="Include rows that are only in the WAL.")] = False
    consistency: Annotated[
        Consistency,
        Option(
            meaning="Shards from their manifests, or from the shard snapshot: far fewer requests "
            "where they are many, and nothing that was flushed since it was taken."
        ),
    ] = "latest"
    explain: Annotated[bool, Option(meaning="Show what would be read, and Lance's plan.")] = False
    output: Output = None
    allow_holes: Annotated[bool, Option(meaning="Continue past missing generation numbers.")] = (
        False
    )
    allow_reinitialised: Annotated[
        bool, Option(meaning="Take generations that are older than the table's MemWAL index.")
    ] = False
    memory_bytes_max: Annotated[
        int | None, Option(flag="memory-max", setting="memory_bytes_max", metavar="1GiB")
    ] = None

    def __post_init__(self) -> None:
        """Raise Usage for options that do not go together."""
        if self.explain and (self.with_wal or self.output is not None):
            raise Usage("--explain reads no rows: neither --with-wal nor --output go with it")
        if self.nearest is None and (self.k, self.metric, self.nprobes) != (None, None, None):
            raise Usage("--k, --metric and --nprobes go with --nearest")
        if self.search is None and (self.operator is not None or self.phrase):
            raise Usage("--operator and --phrase go with --search")


@dataclass(frozen=True, kw_only=True)
class ChangesAsked:
    """The changes after `since`, the version of a `checkpoint`, or where a `cursor` stands.

    With `commit` or `drop`, no rows are read: the cursor is moved to that version, or dropped.
    """

    since: Annotated[
        int | None, Option(meaning="Changes after it. 0: all rows.", metavar="VERSION", least=0)
    ] = None
    checkpoint: Annotated[
        str | None,
        Option(
            meaning="Changes after that checkpoint's version.", flag="from", metavar="CHECKPOINT"
        ),
    ] = None
    cursor: Annotated[
        str | None, Option(meaning="Changes after where it stands.", metavar="NAME")
    ] = None
    until: Annotated[
        int | None,
        Option(meaning="The last version (default: newest).", metavar="VERSION", least=1),
    ] = None
    columns: Columns = None
    before: Annotated[bool, Option(meaning="With the row as it was, in _before.")] = False
    limit: Limit = None
    output: Output = None
    commit: Annotated[
        int | None,
        Option(
            meaning="Move the cursor there, or make it: changes up to that version are done.",
            metavar="VERSION",
            least=1,
        ),
    ] = None
    transaction: Annotated[
        str | None,
        Option(meaning="What to keep beside it, such as that of your database.", metavar="ID"),
    ] = None
    drop: Annotated[bool, Option(meaning="Drop the cursor: it keeps no versions then.")] = False

    def __post_init__(self) -> None:
        """Raise Usage for options that exclude each other."""
        if sum(start is not None for start in (self.since, self.checkpoint, self.cursor)) != 1:
            raise Usage("say from where: one of --since, --from and --cursor")
        if (self.commit is not None or self.drop) and self.cursor is None:
            raise Usage("--commit and --drop go with --cursor")
        if self.drop and self.commit is not None:
            raise Usage("a cursor is moved or dropped, not both")
        if self.transaction is not None and self.commit is None:
            raise Usage("--transaction goes with --commit")
