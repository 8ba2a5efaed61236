"""Rows that are gone, and which of their keys came back with another row. Pure (Arrow in, out)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from memwal.rows.keyset import KeySet, Places


class GoneRows:
    """Rows by key; it notes which of these keys are there again."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        """`rows` has the key's columns, one row a key, and any others."""
        self.rows = rows
        columns = rows.select(keys).columns
        self._known = KeySet(columns)
        self._places = self._known.sort_rows(columns)
        self._back = np.zeros(self._known.count, dtype=bool)

    @property
    def is_sound(self) -> bool:
        """Whether no key is there twice."""
        return self._known.count == len(self.rows)

    def take_back(self, keys: Sequence[pa.ChunkedArray]) -> Places:
        """For each key the place in `rows` of the row that it replaces; -1 if it replaces none."""
        if not self._known.count:
            return np.full(len(keys[0]), -1, dtype=np.int64)
        found = self._known.number(keys)
        self._back[found[found >= 0]] = True
        return np.where(found >= 0, self._places[found], -1)

    def left(self) -> pa.Table:
        """The rows whose keys did not come back."""
        return self.rows.take(self._places[~self._back])
