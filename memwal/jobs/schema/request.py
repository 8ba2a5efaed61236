"""What one may ask of a table's schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from memwal.errors import Usage
from memwal.options import Option


def _parse_pair(between: str, text: str) -> str:
    name, found, value = text.partition(between)
    if not found or not name.strip() or not value.strip():
        raise Usage(f"{text!r}: expected NAME{between}…")
    return f"{name.strip()}{between}{value.strip()}"


def _parse_typed(text: str) -> str:
    return _parse_pair(":", text)


def _parse_assigned(text: str) -> str:
    return _parse_pair("=", text)


@dataclass(frozen=True, kw_only=True)
class SchemaRequest:
    """How the columns are to be. A member of a struct is `column.member`, of a list `column.item`.

    What is so already is left as it is: a run that was killed is simply run again.
    """

    add: Annotated[
        Sequence[str],
        Option(
            meaning="Add a column, which is NULL in the rows that there are, or has its --default.",
            metavar="NAME:TYPE",
            parse=_parse_typed,
        ),
    ] = ()
    drop: Annotated[Sequence[str], Option(meaning="Drop a column.", metavar="NAME")] = ()
    rename: Annotated[
        Sequence[str],
        Option(meaning="Give a column another name.", metavar="OLD=NEW", parse=_parse_assigned),
    ] = ()
    widen: Annotated[
        Sequence[str],
        Option(
            meaning="Give a column a type that holds all values of its own.",
            metavar="NAME=TYPE",
            parse=_parse_assigned,
        ),
    ] = ()
    require: Annotated[
        Sequence[str],
        Option(meaning="Allow no NULL in a column: its --default replaces it.", metavar="NAME"),
    ] = ()
    default: Annotated[
        Sequence[str],
        Option(
            meaning="What rows get that have no value, in JSON; for --add and --require.",
            metavar="NAME=JSON",
            parse=_parse_assigned,
        ),
    ] = ()
    order: Annotated[
        str | None,
        Option(meaning="The columns' order; those not named come last.", metavar="A,B,…"),
    ] = None
    apply: Annotated[
        bool, Option(meaning="Make the changes; else, or in a dry run, show them.")
    ] = False

    @property
    def changes(self) -> bool:
        """Whether anything is asked for."""
        asked = (self.add, self.drop, self.rename, self.widen, self.require, self.default)
        return any(asked) or self.order is not None
