"""Row-merge policies: what becomes of several rows of one key, besides "the newest wins". Pure.

Words. A row of a generation is a VALUE, an OPERAND or a TOMBSTONE. The policy's marker column
(bool) tells values (false, NULL) from operands (true); without a marker all rows are operands. Rows
of the base are values. A key's rows, oldest first, fold as SlateDB's merge operator RFC has it:

    previous   new        result
    nothing    operand    value      tombstone + value      value
    tombstone  operand    value      tombstone + tombstone  tombstone
    value      operand    value      value + value          value
    operand    operand    operand    value + tombstone      tombstone
    operand    value      value      operand + tombstone    tombstone

A value and a tombstone are barriers: nothing older counts. What no barrier of the generations
covers folds with the base's row, oldest first, base first. In a result each named column is what
its operator makes of the column's values, every other column is the newest row's, the marker is
false, and the expiry is the latest one of the rows in it (NULL: never).

All rows of a key in one generation count, not only the newest: pylance 14.0.2's writer hides
superseded rows by a deletion vector at the flush, and keeps them in the file, in the order of the
writes (held by tests/rows/test_policy_pylance.py). A generation that has fewer rows than
its manifest says is refused. A writer that drops superseded rows before it counts them can't be
noticed: such a writer has to fold operands itself before it puts them.

Expiry. An operand whose expiry has come counts no more; a value whose expiry has come is a
tombstone; both by one instant a fold or a read. Operands keep their own expiry for as long as they
are pending. The merge makes one value of them and the base's row, and a row has one expiry: the
latest. So what is merged before it expires stays in the value for as long as that row lives, and
what expires first drops out.

Exactly once. The mark, the folded rows and the tombstones are one commit, against the version that
the base's rows were read at, without a retry: pylance 14.0.2 refuses it when a row that it touches
was changed, deleted or inserted since (scan join, key types that Lance compares). Then the base's
rows are read again.

The policy stands in the table's own config (`memwal.policy`), so that it comes with every version
at no further request, and is put there once, by a commit that fails beside another of its kind. It
survives an overwrite. What the file says has to be what the table says. Fields of a newer build
beside those known here are passed over, and stay: what changes how rows come out has to be another
operator, an operator's parameter, or another `format`, all of which an older build refuses.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from memwal.errors import Unsupported

STORED_KEY = "memwal.policy"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnPolicy:
    """One column's operator. `cap` is the most elements of a list; None for no limit."""

    column: str
    operator: str
    cap: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPolicy:
    """A table's policy; `columns` are sorted by name."""

    columns: tuple[ColumnPolicy, ...]
    marker: str | None = None
    expiry: str | None = None

    @property
    def named(self) -> frozenset[str]:
        """Every column that the policy names."""
        special = {name for name in (self.marker, self.expiry) if name is not None}
        return frozenset(special | {column.column for column in self.columns})

    def as_document(self) -> dict[str, object]:
        """As reports show it."""
        return {
            "columns": {
                c.column: c.operator if c.cap is None else {"operator": c.operator, "cap": c.cap}
                for c in self.columns
            },
            "marker": self.marker,
            "expiry": self.expiry,
        }

    def as_text(self) -> str:
        """As it is stored; equal policies give equal texts."""
        return json.dumps({"format": _FORMAT, **self.as_document()}, sort_keys=True)


def make_policy(
    columns: dict[str, tuple[str, int | None]], marker: str | None, expiry: str | None
) -> RowPolicy:
    """A policy of operators and caps by column."""
    return RowPolicy(
        columns=tuple(
            ColumnPolicy(column=name, operator=operator, cap=cap)
            for name, (operator, cap) in sorted(columns.items())
        ),
        marker=marker,
        expiry=expiry,
    )


def parse_policy(text: str) -> RowPolicy:
    """A stored policy. Raises Unsupported for one that this build can't read."""
    try:
        found = json.loads(text)
        policy = make_policy(
            {name: _operator(value) for name, value in found["columns"].items()},
            _name(found["marker"]),
            _name(found["expiry"]),
        )
        known = {name: found[name] for name in ("format", *policy.as_document())}
        same = json.dumps(known, sort_keys=True) == policy.as_text()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        policy, same = None, False
    if policy is None or not policy.columns or not same:
        raise Unsupported(
            "MW-P01",
            f"the table's row-merge policy ({STORED_KEY} in its config) is none that this build "
            f"knows: {text[:200]}",
        )
    return policy


def is_stored(policy: RowPolicy, text: str) -> bool:
    """Whether a stored text is this policy's."""
    try:
        return parse_policy(text) == policy
    except Unsupported:
        return False


def _operator(stored: object) -> tuple[str, int | None]:
    match stored:
        case str():
            return stored, None
        case {"operator": "list_append", "cap": int(cap)} if cap > 0:
            return "list_append", cap
    raise ValueError("no operator")


def _name(stored: object) -> str | None:
    if stored is None or isinstance(stored, str):
        return stored
    raise ValueError("no column's name")


def policy_document(text: str | None) -> dict[str, object] | None:
    """A stored policy for a report; one that can't be read as its text, None for none."""
    if text is None:
        return None
    try:
        return parse_policy(text).as_document()
    except Unsupported:
        return {"unreadable": text}
