"""What one may ask of a table's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option

_PAIRS = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class SchemaRequest:
    """The changes, which are made in one commit; names are those that columns have afterwards."""

    add: Annotated[
        Sequence[str],
        Option(
            meaning="Add a column at the end, such as price:double. Rows that lack it get NULL, or "
            "the --default.",
            metavar="NAME:TYPE",
        ),
    ] = ()
    drop: Annotated[Sequence[str], Option(meaning="Drop a column.", metavar="NAME")] = ()
    rename: Annotated[_PAIRS, Option(meaning="Rename a column.", metavar="OLD=NEW")] = ()
    widen: Annotated[
        _PAIRS,
        Option(
            meaning="Give a column a type that has every value of the present one, such as "
            "clicks=int64.",
            metavar="NAME=TYPE",
        ),
    ] = ()
    default: Annotated[
        _PAIRS,
        Option(
            meaning="What an added column has in each row that is there, as JSON. It is NOT NULL.",
            metavar="NAME=JSON",
        ),
    ] = ()
    apply: Annotated[
        bool,
        Option(
            meaning="Merge what is pending, and make the changes; else, or in a dry run, say what "
            "they come to."
        ),
    ] = False
    fence: Annotated[
        bool,
        Option(
            meaning="Claim and flush each shard first; its writer has to be opened again. Without "
            "it, a shard with rows in its WAL, or an open writer, is refused.",
        ),
    ] = False

    @property
    def asks(self) -> bool:
        """Whether it asks for any change."""
        changes = (self.add, self.drop, self.rename, self.widen, self.default)
        return any(changes) or self.apply or self.fence
