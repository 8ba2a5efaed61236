"""The row-merge policy that a table has, checked against the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from memwal.errors import Unsupported
from memwal.model import TableView
from memwal.rows.keys import new_keys_are_compared
from memwal.rows.policy import RowPolicy, parse_policy
from memwal.rows.policy_fold import check_policy


def read_policy(view: TableView, opened: Callable[[int], Any]) -> RowPolicy | None:
    """The table's policy, if it has one. `opened` opens a version of the base.

    Raises Refused, Unsupported for one that can't be kept, and what `opened` raises.
    """
    if view.policy_text is None:
        return None
    policy = parse_policy(view.policy_text)
    check_fits(policy, view, opened(view.version).schema)
    return policy


def check_fits(policy: RowPolicy, view: TableView, schema: pa.Schema) -> None:
    """Raise Refused or Unsupported when the table can't have the policy."""
    check_policy(policy, schema, view.primary_key)
    types = key_types(view)
    if not new_keys_are_compared(types):
        raise Unsupported(
            "MW-P05",
            f"{view.uri}: a key of type {', '.join(types)} can't go with a row-merge policy: Lance "
            "would not notice that a key is inserted twice at a time",
        )


def key_types(view: TableView) -> tuple[str, ...]:
    """The key columns' types, by name."""
    by_name = {column.name: column.type_text for column in view.columns}
    return tuple(by_name[key] for key in view.primary_key)
