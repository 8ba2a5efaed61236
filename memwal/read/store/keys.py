"""Sets of keys, from rows and from a request."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from memwal.read.plan.sources import ReadPlan
from memwal.rows.keyset import KeySet


def collect_keys(tables: Sequence[pa.Table | pa.RecordBatch], keys: Sequence[pa.Field]) -> KeySet:
    """The keys of all rows of the tables."""
    columns = []
    for key in keys:
        parts = [table[key.name] for table in tables]
        chunks = [c for part in parts for c in getattr(part, "chunks", (part,))]
        columns.append(pa.chunked_array(chunks, type=key.type))
    return KeySet(columns)


def collect_wanted_keys(plan: ReadPlan, schema: pa.Schema) -> KeySet:
    """The keys that a request names, in columns of the schema's types."""
    keys = plan.keys or ()
    return KeySet(
        [
            pa.chunked_array([[key[place] for key in keys]], type=schema.field(name).type)
            for place, name in enumerate(plan.primary_key)
        ]
    )
