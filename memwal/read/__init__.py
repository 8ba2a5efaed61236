"""The LSM merging read: a table as its readers have to see it, base and MemWAL together.

    from memwal.read import Nearest, Search, open_table

    table = open_table("s3://bucket/events", {"aws_region": "eu-west-1"})
    reader = table.read(columns=["id", "text"], filter="score > 0.5", limit=100)
    for batch in reader:
        ...
    row = table.read(key={"id": 42}).read_all()
    near = table.read(nearest=Nearest(column="vector", vector=query, k=10)).read_all()
    best = table.read(search=Search(column="text", query="lost parcel"), limit=10).read_all()
    then = table.read(version=17).read_all()

table    the Python API: keys from callers, checked, and the pruning of shards by a filter
job      `memwal read`, and where each part of it comes from; report is its document, show is how
         that is displayed
plan     what is read
store    how it is read
output   rows as files
spark    the same read as a Spark data source; its options and types beside it
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memwal.read.plan.request import Nearest, ReadRequest, Search
    from memwal.read.table import ReadableTable, open_table

__all__ = ["Nearest", "ReadRequest", "ReadableTable", "Search", "open_table"]
_HOMES = {"ReadableTable": "table", "open_table": "table"}


def __getattr__(name: str) -> Any:
    """Import on first use: Spark's driver, which forks, must not load Lance."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"memwal.read.{_HOMES.get(name, 'plan.request')}")
    return getattr(home, name)
