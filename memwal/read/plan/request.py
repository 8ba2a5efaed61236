"""The request of a merging read, and the check that it fits the table. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

from memwal.errors import Usage
from memwal.model import Checkpoint, TableView
from memwal.options import Consistency
from memwal.rows.expire import Horizon
from memwal.rows.keys import keys_in

# Lance's own columns, which differ between the base table and a generation that holds the same row.
_SYSTEM_COLUMNS = re.compile(r"\b(_row\w+|_tombstone)\b", re.IGNORECASE)

DISTANCE = "_distance"
SCORE = "_score"

OPERATORS = ("or", "and")


@dataclass(frozen=True, kw_only=True, slots=True)
class Nearest:
    """The k rows whose vector is nearest to `vector`.

    `metric` is `l2`, `cosine` or `dot`; None means that of the column's index, or `l2` without one.
    `nprobes` is how many partitions of an index are searched; None leaves it to Lance. An index
    that keeps compressed vectors chooses k candidates, which are compared by the full ones: a
    larger k, with a limit, finds more of the nearest, and costs more.
    """

    column: str
    vector: tuple[float, ...]
    k: int = 10
    metric: str | None = None
    nprobes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """The rows whose text in `column` has words of `query`, cut as the column's index cuts them.

    `operator` is `or` (any of the words) or `and` (all of them); with `phrase` they have to follow
    one another.
    """

    column: str
    query: str
    operator: str = "or"
    phrase: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRequest:
    """What to read. None sets no bound: all columns, all rows, the latest version.

    `keys` are values in the primary key's order. A filter also restricts `nearest`, `search` and
    `keys`. `merged_only` leaves pending generations out; None reads them like False, but warns when
    they are combined with an older version. `checkpoint` names a checkpoint to read instead of a
    version.
    """

    columns: tuple[str, ...] | None = None
    filter: str | None = None
    limit: int | None = None
    keys: tuple[tuple[object, ...], ...] | None = None
    nearest: Nearest | None = None
    search: Search | None = None
    version: int | None = None
    merged_only: bool | None = None
    checkpoint: str | None = None
    allow_holes: bool = False
    allow_reinitialised: bool = False
    consistency: Consistency = "latest"

    def __post_init__(self) -> None:
        """Raise Usage for options that exclude each other."""
        if self.consistency == "snapshot" and (self.version, self.checkpoint) != (None, None):
            raise Usage("consistency snapshot is of now: it goes with no version or checkpoint")


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The state of the table that is read; the latest, without a version or a checkpoint."""

    version: int | None = None
    merged_only: bool = False
    checkpoint: Checkpoint | None = None

    @property
    def is_latest(self) -> bool:
        """Whether it is the table as it is now, shards and all."""
        return self == Moment()


def check_moment(request: ReadRequest, *, with_wal: bool) -> None:
    """Raise Usage for contradictory moments, or for rows of the WAL that a moment can't have."""
    if request.checkpoint is not None and (
        request.version is not None or request.merged_only is not None
    ):
        raise Usage("a checkpoint is a whole moment: neither a version nor merged only go with it")
    if with_wal and (request.checkpoint is not None or request.merged_only):
        raise Usage("rows of the WAL are in no checkpoint, nor in what is merged")


def choose_columns(view: TableView, request: ReadRequest) -> tuple[str, ...]:
    """The columns asked for, or all. Raises Usage for names that are not the table's."""
    known = [column.name for column in view.columns]
    if request.columns is None:
        return tuple(known)
    for name in request.columns:
        if name not in known:
            raise _no_column(view, name)
    if not request.columns or len(set(request.columns)) < len(request.columns):
        raise Usage("columns must be named, each of them once")
    return request.columns


def _no_column(view: TableView, name: str) -> Usage:
    known = [column.name for column in view.columns]
    whole = name.partition(".")[0]
    why = f"; what is inside of {whole!r} can't be named by itself" if whole in known else ""
    return Usage(
        f"{view.uri}: version {view.version} has no column {name!r}; it has {', '.join(known)}{why}"
    )


def check_request(view: TableView, request: ReadRequest) -> None:
    """Raise Usage for bounds that make no sense, or do not fit the table."""
    if request.limit is not None and request.limit < 0:
        raise Usage(f"limit {request.limit} is negative")
    if request.filter is not None:
        check_filter(view, request.filter)
    if request.keys is not None and not view.primary_key:
        raise Usage(f"{view.uri}: the table has no primary key to look keys up by")
    for key in request.keys or ():
        if len(key) != len(view.primary_key):
            raise Usage(f"a key needs a value for each of {', '.join(view.primary_key)}")
    if request.nearest is not None and request.search is not None:
        raise Usage("a read is for the nearest vectors or for a text, not for both")
    if request.nearest is not None:
        _check_searched(view, request, request.nearest.column, DISTANCE)
        if request.nearest.k < 1:
            raise Usage(f"k {request.nearest.k} is not positive")
    if request.search is not None:
        _check_searched(view, request, request.search.column, SCORE)
        if not request.search.query.strip():
            raise Usage("there is no text to search for")
        if request.search.operator not in OPERATORS:
            known = " or ".join(map(repr, OPERATORS))
            raise Usage(f"operator {request.search.operator!r}: expected {known}")


def _check_searched(view: TableView, request: ReadRequest, column: str, added: str) -> None:
    names = [column.name for column in view.columns]
    if column not in names:
        raise _no_column(view, column)
    if added in names:
        raise Usage(f"{view.uri}: a search adds {added}, and the table has such a column")
    if added in (request.columns or ()):
        raise Usage(f"{added} is added by itself")


def parse_search(option: str, text: str, operator: str | None, *, phrase: bool) -> Search:
    """A search from `COLUMN=TEXT`. Raises Usage, which names the option."""
    column, equals, query = text.partition("=")
    if not equals or not column:
        raise Usage(f"{option} {text!r}: expected COLUMN=TEXT")
    return Search(column=column, query=query, operator=operator or OPERATORS[0], phrase=phrase)


def parse_nearest(
    option: str,
    text: str,
    *,
    k: int | None,
    metric: str | None,
    nprobes: int | None,
) -> Nearest:
    """The nearest rows from `COLUMN=[0.1, …]`. Raises Usage, which names the option."""
    column, equals, numbers = text.partition("=")
    try:
        vector = json.loads(numbers) if equals else None
    except (ValueError, RecursionError):
        vector = None
    if not column or not isinstance(vector, list) or not all(map(_is_number, vector)):
        raise Usage(f"{option} {text!r}: expected COLUMN=[0.1, 0.2, …]")
    return Nearest(
        column=column,
        vector=tuple(float(v) for v in vector),
        k=10 if k is None else k,
        metric=metric,
        nprobes=nprobes,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_filter(view: TableView, text: str) -> None:
    """Raise Usage for a filter that means different things in the base and in a generation."""
    if not text.strip():
        raise Usage("the filter is empty")
    names = {column.name.lower() for column in view.columns}
    found = _SYSTEM_COLUMNS.search(text)
    if found is not None and found[0].lower() not in names:
        raise Usage(
            f"a filter can't use {found[0]!r}: a row has another value there in a generation than "
            "in the base table"
        )
    if not _is_closed(text):
        raise Usage(f"the filter's parentheses or quotes are not closed: {text}")


def _is_closed(text: str) -> bool:
    """Whether parentheses are balanced outside of quotes; Lance takes `a) OR (b`."""
    depth, quote = 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        else:
            depth += (char == "(") - (char == ")")
            if depth < 0:
                return False
    return depth == 0 and not quote


def write_predicate(
    primary_key: Sequence[str], request: ReadRequest, horizon: Horizon | None
) -> str | None:
    """The filter, the keys' condition and that of rows which live, as one SQL text for Lance."""
    # The line break ends a comment at the filter's end.
    parts = [] if request.filter is None else [f"({request.filter}\n)"]
    if request.keys is not None:
        condition = keys_in(primary_key, request.keys) if request.keys else "false"
        parts.insert(0, condition)
    if horizon is not None:
        parts.append(horizon.kept)
    return " AND ".join(parts) or None


def parse_consistency(text: str) -> Consistency:
    """`latest` or `snapshot`. Raises Usage for anything else."""
    if text not in get_args(Consistency):
        raise Usage(f"consistency {text!r}: expected {' or '.join(get_args(Consistency))}")
    return cast("Consistency", text)
