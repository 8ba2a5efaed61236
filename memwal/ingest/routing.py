"""Rows -> shards, by the table's shard spec. Pure.

pylance leaves it to the caller which shard takes a row: it never ties a shard to a value, and its
manifests name none (field notes 11). Here a shard's id follows from the spec and the values, so
that any two coordinators agree without asking each other; the values are stored in the shard's
first manifest, where the merging read prunes by them. A shard that says it holds the same values,
whatever its id, is used in the place of a new one.

A table without a shard spec, one that is managed by hand, has one shard here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid5

import numpy as np
import pyarrow as pa

from memwal.errors import Refused
from memwal.ingest.operations import codes_of
from memwal.model import ShardId, ShardManifest, ShardSpec, ShardStatus
from memwal.sharding.evaluate import check_routable, shard_values
from memwal.sharding.rules import Rule, rule_of
from memwal.sharding.spec import Source, Sources, Spec, read_spec
from memwal.sharding.values import encode_value

# Fixed for ever: ids that were derived from it are in use.
_NAMESPACE = UUID("5ac3f0a2-7d0a-4f5e-9a3c-6d656d77616c")
MANUAL_SPEC_ID = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardValues:
    """What all rows of a shard have in common. A field that is NULL has no entry."""

    spec_id: int
    entries: tuple[tuple[str, bytes], ...] = ()

    @property
    def shard_id(self) -> ShardId:
        """The id of a new shard for them."""
        values = "".join(f"/{name}={data.hex()}" for name, data in sorted(self.entries))
        return ShardId(str(uuid5(_NAMESPACE, f"{self.spec_id}{values}")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A shard that takes rows, and what its manifest says, or is to say when it is new."""

    shard_id: ShardId
    values: ShardValues


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Routed:
    """Rows of one batch that go to one shard: their places in the batch, ascending."""

    place: Place
    indices: pa.Array

    def __len__(self) -> int:
        return len(self.indices)

    def of(self, batch: pa.RecordBatch) -> pa.Table:
        """These rows of the batch that was routed."""
        rows = pa.Table.from_batches([batch])
        return rows if len(self) == len(rows) else rows.take(self.indices)


def current_spec(specs: Sequence[ShardSpec]) -> Spec | None:
    """The spec that new rows go by: the last one; None for a table that has none."""
    return read_spec(max(specs, key=lambda spec: spec.spec_id)) if specs else None


@dataclass(kw_only=True)
class Router:
    """Routes rows by one spec, or all of them to the `fixed` place.

    `places` remembers where values were found to go.
    """

    spec: Spec | None
    sources: Sources
    manifests: Sequence[ShardManifest] = ()
    fixed: Place | None = None
    rule: Rule | None = None
    places: dict[ShardValues, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises Unsupported or Refused for a spec that rows can't be routed by."""
        if self.spec is not None and self.fixed is None:
            check_routable(self.spec, self.sources)
        if self.spec is not None and self.rule is None:
            self.rule = rule_of(self.spec, self.sources).rule

    @property
    def columns(self) -> Sequence[str]:
        """The top-level columns that a row's shard depends on."""
        if self.spec is None or self.fixed is not None:
            return ()
        found = {s.path[0] for f in self.spec.fields for s in self._sources_of(f.source_ids)}
        found |= {f.column.partition(".")[0] for f in self.spec.fields if f.column}
        return sorted(found)

    def _sources_of(self, field_ids: Sequence[int]) -> Iterator[Source]:
        return (self.sources[i] for i in field_ids if i in self.sources)

    def route(self, rows: pa.RecordBatch) -> list[Routed]:
        """Where each row goes; shards in the order of their first rows.

        Raises Usage, Unsupported or Refused when a row's values can't be computed, and Refused for
        a SEALED shard.
        """
        if rows.num_rows == 0:
            return []
        if self.spec is None or self.fixed is not None:
            place = self.fixed or self._place(ShardValues(spec_id=MANUAL_SPEC_ID))
            return [Routed(place=place, indices=pa.array(np.arange(rows.num_rows)))]
        values = shard_values(rows, self.spec, self.sources, rule=self.rule)
        codes = codes_of(values.columns)
        counts = np.bincount(codes)
        # Sixteen bits are sorted by counting.
        order = np.argsort(codes.astype(np.uint16) if len(counts) < 2**16 else codes, kind="stable")
        return [
            Routed(
                place=self._place(self._values_at(values, int(indices[0]))),
                indices=pa.array(indices),
            )
            for indices in np.split(order, np.cumsum(counts)[:-1])
        ]

    def _values_at(self, values: pa.RecordBatch, row: int) -> ShardValues:
        spec_id = MANUAL_SPEC_ID if self.spec is None else self.spec.spec_id
        encoded = ((name, encode_value(values[name][row])) for name in values.schema.names)
        entries = tuple((name, data) for name, data in encoded if data is not None)
        return ShardValues(spec_id=spec_id, entries=entries)

    def _place(self, values: ShardValues) -> Place:
        if values not in self.places:
            self.places[values] = self._find(values)
        return self.places[values]

    def _find(self, values: ShardValues) -> Place:
        derived = values.shard_id
        same = {m.shard_id: m for m in self.manifests if _says(m) == values and values.entries}
        chosen = derived if derived in same or not same else min(same)
        if len(same) > 1 and derived not in same:
            raise Refused(
                f"shards {', '.join(sorted(same))} all say that they hold {values.entries}; name "
                "the one to write to"
            )
        manifest = next((m for m in self.manifests if m.shard_id == chosen), None)
        if manifest is not None and manifest.status is ShardStatus.SEALED:
            raise Refused(f"shard {chosen} is SEALED: it takes no more rows")
        return Place(shard_id=chosen, values=values)


def _says(manifest: ShardManifest) -> ShardValues:
    """The values that a shard's manifest claims for its rows."""
    return ShardValues(
        spec_id=manifest.shard_spec_id, entries=tuple(sorted(manifest.shard_field_entries))
    )


def unlabelled(manifests: Sequence[ShardManifest], merged: Mapping[ShardId, int]) -> list[ShardId]:
    """Shards with rows beyond the base table that don't say which values they hold.

    A key that is in one of them and is ingested into another shard has no order between the two.
    """
    return [
        m.shard_id
        for m in manifests
        if not m.shard_field_entries
        and m.shard_id != ShardValues(spec_id=m.shard_spec_id).shard_id
        and (
            any(g.generation > merged.get(m.shard_id, 0) for g in m.flushed_generations)
            or m.wal_entry_position_last_seen > m.replay_after_wal_entry_position
        )
    ]
