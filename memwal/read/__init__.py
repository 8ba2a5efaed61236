"""The LSM merging read: a table as its readers have to see it, base and MemWAL together.

    from memwal.read import Nearest, open_table

    table = open_table("s3://bucket/events", {"aws_region": "eu-west-1"})
    reader = table.read(columns=["id", "text"], filter="score > 0.5", limit=100)
    for batch in reader:
        ...
    row = table.read(key={"id": 42}).read_all()
    near = table.read(nearest=Nearest(column="vector", vector=query, k=10)).read_all()
    then = table.read(version=17).read_all()

table    the Python API
request  values from outside -> a request
pruning  shards that a filter leaves out
explain  where each part of a read comes from
output   rows as JSON, and as files
"""

from memwal.plan.read import Nearest, ReadPlan, ReadRequest
from memwal.read.table import ReadableTable, open_table

__all__ = ["Nearest", "ReadPlan", "ReadRequest", "ReadableTable", "open_table"]
