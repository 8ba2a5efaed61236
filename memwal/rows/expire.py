"""Rows that expire: a column and an age, past which a row is as if deleted. Pure.

A row has expired when its column's time is earlier than the cut, which is one instant a run, less
the age; NULL never is. The newest row of a key decides, since the condition is applied where a
filter is: to rows that won. So a row that has expired hides older ones as a delete does, and one
that was renewed lives, wherever its older rows are.

Nothing but reads and compaction knows of it. A merge writes what it finds: if it dropped rows by
its clock, two merges of the same generations could differ in the rows that they write, and Lance
notices their race by rows that both write. A row whose newest version lies in the base has no
other, so what a compaction deletes there by the same condition changes no read after its cut.

The setting stands in the table's own config (`memwal.expire`), so that it comes with each version.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from memwal.errors import Refused, Unsupported, Usage
from memwal.rows.keys import quote_name

if TYPE_CHECKING:
    from memwal.model import TableView

EXPIRE_KEY = "memwal.expire"
_AFTER_SECONDS_MAX = 100 * 366 * 86_400
# Others, Lance compares as the wall time of their zone.
_ZONES = ("", ", tz=UTC", ", tz=Etc/UTC", ", tz=+00:00")
_TYPES = {
    f"timestamp[{unit}{zone}]": "timestamp" for unit in ("s", "ms", "us", "ns") for zone in _ZONES
}
_TYPES |= {"date32[day]": "date", "date64[ms]": "date"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Expire:
    """The column that tells a row's age, and the age at which it expires, in whole seconds."""

    column: str
    after_seconds: int

    def as_document(self) -> dict[str, object]:
        """As reports show it."""
        return {"column": self.column, "after_seconds": self.after_seconds}

    def as_text(self) -> str:
        """As it is stored; equal settings give equal texts."""
        return json.dumps({"format": 1, **self.as_document()}, sort_keys=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Horizon:
    """The time before which rows have expired, and SQL of a table for both kinds of rows."""

    before: datetime
    expired: str
    kept: str


def make_expire(column: str, after_seconds: float) -> Expire:
    """The setting that somebody asks for. Raises Usage."""
    if not 1 <= after_seconds <= _AFTER_SECONDS_MAX or after_seconds % 1:
        raise Usage(
            f"rows expire after {after_seconds:g} s: expected whole seconds, up to 100 years"
        )
    return Expire(column=column, after_seconds=int(after_seconds))


def parse_expire(text: str) -> Expire:
    """A stored setting. Raises Unsupported for one that this build can't read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"format": 1, "column": str(column), "after_seconds": int(seconds)}:
            if type(seconds) is int and 0 < seconds <= _AFTER_SECONDS_MAX:
                return Expire(column=column, after_seconds=seconds)
    raise Unsupported(
        "MW-P15",
        f"when the table's rows expire ({EXPIRE_KEY} in its config) is nothing that this build "
        f"understands: {text[:200]}",
    )


def describe_expire(view: TableView) -> dict[str, object] | None:
    """The stored setting for a report; one that can't be read as its text, None for none."""
    text = view.manifest.config.get(EXPIRE_KEY)
    if text is None:
        return None
    try:
        return parse_expire(text).as_document()
    except Unsupported:
        return {"unreadable": text}


def find_expire(view: TableView) -> Expire | None:
    """When rows of the table expire, None for never. Raises Refused or Unsupported if it can't be.

    By a setting that does not fit, nothing is known to have expired, or not to have.
    """
    text = view.manifest.config.get(EXPIRE_KEY)
    if text is None:
        return None
    expire = parse_expire(text)
    check_expire(expire, view)
    return expire


def check_expire(expire: Expire, view: TableView) -> None:
    """Raise Refused or Unsupported when rows of the table can't expire like that."""
    types = view.describe_columns()
    if expire.column not in types:
        raise Refused(
            "MW-P16", f"rows expire by column {expire.column!r}, which the table does not have"
        )
    if types[expire.column] not in _TYPES:
        raise Refused(
            "MW-P16",
            f"rows can't expire by column {expire.column!r}, of type {types[expire.column]}: it "
            "takes a date, or a timestamp in UTC or without a zone",
        )
    if view.policy_text is not None:
        raise Refused("MW-P17", WITH_POLICY)


WITH_POLICY = (
    "rows can't expire where a row-merge policy folds them: what has expired would still be "
    "folded. A policy has an expiry column of its own"
)


def find_horizon(view: TableView, cut_nanos: int) -> Horizon | None:
    """The horizon of the table's rows at the cut, None where they do not expire.

    In whole seconds, which every type can tell. Raises as `find_expire`.
    """
    expire = find_expire(view)
    if expire is None:
        return None
    kind = _TYPES[view.describe_columns()[expire.column]]
    before = datetime.fromtimestamp(cut_nanos // 10**9 - expire.after_seconds, UTC)
    name, literal = quote_name(expire.column), _write_time(before, kind)
    return Horizon(
        before=before,
        expired=f"{name} < {literal}",
        kept=f"({name} IS NULL OR {name} >= {literal})",
    )


def _write_time(time: datetime, kind: str) -> str:
    """A literal for Lance. A date is its first moment: the first one that is kept may be later."""
    if kind == "timestamp":
        return f"timestamp '{time:%Y-%m-%d %H:%M:%S}'"
    is_whole = (time.hour, time.minute, time.second) == (0, 0, 0)
    return f"date '{time if is_whole else time + timedelta(days=1):%Y-%m-%d}'"
