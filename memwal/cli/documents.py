"""Documents that are no job's report, described for their JSON Schemas.

Who makes them writes plain dicts; tests/cli/test_schema.py holds those to what stands here.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ReadTable(BaseModel):
    """The one table. `rows` is null with `output`; `--explain` has `explain` in their place."""

    table: str
    outcome: str
    error: str | None
    checkpoint: str | None
    merged_only: bool
    version: int
    consistency: str
    taken_at: str | None
    warnings: list[str]
    columns: list[dict[str, str]] | None = Field(default=None, alias="schema")
    num_rows: int | None = None
    rows: list[dict[str, Any]] | None = None
    output: str | None = None
    limit: int | None = None
    generations: int | None = None
    shards: int | None = None
    pruned_shards: int | None = None
    explain: dict[str, Any] | None = None


class ReadDocument(BaseModel):
    """A read that succeeded. One that failed is a report, as of any job."""

    job: str
    outcome: str
    seconds: float
    run_id: str
    tables: list[ReadTable]


class IndexState(BaseModel):
    """What the MemWAL index says. `merged_generations` is by shard, `index_catchup` by index."""

    index_uuid: str
    entry_created_at: str | None
    merged_generations: dict[str, int]
    index_catchup: dict[str, dict[str, int]]
    maintained_indexes: list[str]
    maintain_all_indexes: bool | None
    shard_specs: list[dict[str, Any]]
    snapshot: dict[str, str | int | None]
    writer_config_defaults: dict[str, str]


class IndexDocument(BaseModel):
    """`inspect index`."""

    version: int
    committed_at: str | None
    mem_wal: IndexState | None
    policy: dict[str, Any] | None


class ManifestDocument(BaseModel):
    """`inspect manifest`. `indexes` has a segment each."""

    version: int
    committed_at: str | None
    mem_wal: IndexState | None
    branch: str | None
    file_bytes: int
    requests: int
    indexes: list[dict[str, str | int | list[int]]]


class Shard(BaseModel):
    """What `inspect shard` and `inspect wal` both tell of a shard."""

    shard_id: str
    status: str
    writer_epoch: int
    current_generation: int
    merged_generation: int
    replay_after_wal_entry_position: int
    wal_entry_position_last_seen: int


class ShardManifest(Shard):
    """A shard's manifest, beside the table's progress for it."""

    version: int
    path: str
    shard_spec_id: int
    shard_fields: dict[str, str]
    flushed_generations: list[dict[str, str | int | None]]


class ShardWal(Shard):
    """A shard's WAL: the newest entries, and how many were `left_out`."""

    next_position: int
    unflushed: dict[str, int]
    left_out: int
    entries: list[dict[str, Any]]
    problems: list[str]
    warnings: list[str]
    broken: list[str]


class ShardsDocument(BaseModel):
    """`inspect shard`."""

    table: str
    version: int
    shards: list[ShardManifest]


class WalDocument(BaseModel):
    """`inspect wal`."""

    table: str
    version: int
    shards: list[ShardWal]


class ShardDocument(BaseModel):
    """`memwal shard`. `exists`: whether a writer has made it yet."""

    table: str
    shard_id: str
    exists: bool


class EventDocument(BaseModel, extra="allow"):
    """A line of `memwal watch --json`; besides, what an event of its kind tells."""

    at: str
    table: str | None
    event: str


class ConfigDocument(BaseModel):
    """`memwal config`; `value` and `origin` where a key is set, the rest with `--explain`."""

    file: str | None
    keys: list[dict[str, Any]]


class SchemaNames(BaseModel):
    """`memwal schema` without a document's name."""

    version: int
    documents: list[str]
