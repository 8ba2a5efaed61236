"""Short ways to specs, sources and rows for the tests of sharding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from memwal.model import ColumnInfo, ShardField, ShardSpec
from memwal.sharding.spec import Source, Sources, Spec, read_spec, sources_of


def a_field(
    transform: str | None, *source_ids: int, name: str = "f", **parameters: Any
) -> ShardField:
    expression = parameters.pop("expression", None)
    result_type = parameters.pop("result_type", "")
    return ShardField(
        field_id=name,
        source_ids=source_ids,
        transform=transform,
        expression=expression,
        result_type=result_type,
        parameters={key: str(value) for key, value in parameters.items()},
    )


def a_spec(*fields: ShardField, spec_id: int = 1) -> Spec:
    return read_spec(ShardSpec(spec_id=spec_id, fields=fields))


def numbered(schema: pa.Schema) -> list[ColumnInfo]:
    """Columns with field ids in the order in which Lance gives them out."""
    count = iter(range(1_000))

    def column(field: pa.Field) -> ColumnInfo:
        number = next(count)
        nested = pa.types.is_struct(field.type)
        children = [field.type.field(i) for i in range(field.type.num_fields)] if nested else []
        return ColumnInfo(
            field_id=number,
            name=field.name,
            type_text=str(field.type),
            nullable=field.nullable,
            children=tuple(column(child) for child in children),
        )

    return [column(field) for field in schema]


def sources_for(schema: pa.Schema) -> dict[int, Source]:
    return sources_of(numbered(schema), schema)


def one_column(array: pa.Array, name: str = "k") -> tuple[pa.RecordBatch, Sources]:
    batch = pa.record_batch([array], names=[name])
    return batch, sources_for(batch.schema)


def as_description(spec: ShardSpec) -> Mapping[str, Any]:
    """A stored spec in the shape that pylance takes and gives."""
    return {
        "spec_id": spec.spec_id,
        "fields": [
            {
                "field_id": field.field_id,
                "source_ids": list(field.source_ids),
                "transform": field.transform,
                "expression": field.expression,
                "result_type": field.result_type,
                "parameters": dict(field.parameters),
            }
            for field in spec.fields
        ],
    }
