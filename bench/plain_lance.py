"""A Lance table as a Spark data source and no more: what the merging read is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from memwal.read.spark_options import convert_batch, convert_schema


class PlainLance(DataSource):
    """One task a fragment."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "plain_lance"

    def schema(self) -> StructType:
        """The columns asked for."""
        import lance

        schema = lance.dataset(self.options["path"]).schema
        names = self.options.get("columns", ",".join(schema.names)).split(",")
        return StructType.fromJson(convert_schema(pa.schema([schema.field(n) for n in names])))

    def reader(self, schema: StructType) -> PlainReader:
        """Reads with the option `filter`."""
        return PlainReader(self.options["path"], self.options.get("filter"), schema)


class PlainReader(DataSourceReader):
    """Reads fragments by number."""

    def __init__(self, path: str, filter: str | None, schema: StructType) -> None:
        self.path, self.filter, self.schema = path, filter, schema

    def partitions(self) -> list[InputPartition]:
        """The fragments."""
        import lance

        return [InputPartition(f.fragment_id) for f in lance.dataset(self.path).get_fragments()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One fragment's rows."""
        import lance

        fragment = lance.dataset(self.path).get_fragment(partition.value)
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for batch in fragment.to_batches(columns=schema.names, filter=self.filter):
            yield from convert_batch(batch, schema)
