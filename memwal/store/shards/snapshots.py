"""Reads the shard snapshot that the MemWAL index holds, once a run has confirmed it.

What a snapshot lists is read beside the merge progress of the version that has it. The commit that
stores a snapshot may lower that progress (`memwal.jobs.snapshot.apply` says how, and repairs it),
and then generations that the snapshot lists would hide newer rows that are merged already. So the
run that took one says afterwards that nothing is lowered, in a small document of its own, with a
digest of the snapshot's bytes. Without it no snapshot is read, and none that differs from it, since
Lance's reader ends the process on some damaged files.

The document also says where an external snapshot lies: a merge gives the index entry a new uuid, by
which it is not found any more.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
from lance.file import LanceFileReader
from pydantic import BaseModel, ValidationError

from memwal.errors import Corruption, MemWalError, Missing, Unsupported
from memwal.format import codec, layout
from memwal.model import FlushedGeneration, MemWalState, ShardId, ShardManifest
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.sharding.spec import encode_value
from memwal.store.tables.lance_calls import tidy_text, translated
from memwal.store.tables.manifests import check_data_file

FIELD_PREFIX = "region_field_"
_CONFIRMED = f"{layout.MAINTENANCE}/snapshot.json"
_CONFIRMED_BYTES_MAX = 64 * 1024


class _Confirmed(BaseModel):
    """The snapshot that was confirmed last."""

    format: Literal[1] = 1
    taken_at_millis: int
    index_uuid: UUID
    sha256: str


def external_path(index_uuid: str) -> str:
    """Where the snapshot of a MemWAL index entry is, when it is not inline."""
    return f"_indices/{index_uuid}/index.lance"


class ShardSnapshots:
    """The shard snapshot of one table."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def confirm(self, *, taken_at_millis: int, index_uuid: str, data: bytes) -> None:
        """Say that the commit which stored this snapshot left no merge progress lowered."""
        confirmed = _Confirmed(
            taken_at_millis=taken_at_millis, index_uuid=UUID(index_uuid), sha256=_digest(data)
        )
        self._objects.put(_CONFIRMED, confirmed.model_dump_json().encode())

    def is_confirmed(self, state: MemWalState, data: bytes) -> bool:
        """Whether `data`, which is what the state's entry stores, was confirmed."""
        found = self._read_confirmed(state)
        return isinstance(found, _Confirmed) and found.sha256 == _digest(data)

    def read(self, state: MemWalState) -> Sequence[ShardManifest] | str:
        """The shards as they were at `snapshot_ts_millis`, or why that can't be told.

        Two requests at most. Raises StoreUnavailable, BadCredentials.
        """
        data = self.read_bytes(state)
        if isinstance(data, str):
            return data
        try:
            found = decode_snapshot(data)
        except MemWalError as error:
            return f"the snapshot can't be read: {error}"
        if len(found) != state.num_shards:
            return f"the snapshot has {len(found)} shards, and the index says {state.num_shards}"
        return found

    def find_bytes(self, state: MemWalState) -> bytes | None:
        """What is stored as a snapshot, confirmed or not; None where nothing is.

        Raises Corruption for an object that is too large, StoreUnavailable, BadCredentials.
        """
        if state.inline_snapshots is not None or not state.snapshot_ts_millis:
            return state.inline_snapshots or None
        confirmed = self._read_confirmed(state)
        known = [] if isinstance(confirmed, str) else [str(confirmed.index_uuid)]
        for uuid in (state.index_uuid, *known):
            with suppress(Missing):
                return self._objects.get(external_path(uuid), DOCUMENT_BYTES_MAX)
        return None

    def read_bytes(self, state: MemWalState) -> bytes | str:
        """The confirmed snapshot as it is stored, or why there is none."""
        if not state.snapshot_ts_millis:
            return "no snapshot was taken"
        confirmed = self._read_confirmed(state)
        if isinstance(confirmed, str):
            return confirmed
        data = state.inline_snapshots
        if data is None:
            path = external_path(str(confirmed.index_uuid))
            try:
                data = self._objects.get(path, DOCUMENT_BYTES_MAX)
            except Missing:
                return f"the snapshot is gone: {path} does not exist"
            except Corruption as error:
                return f"the snapshot can't be read: {error}"
        if _digest(data) != confirmed.sha256:
            return "the snapshot is not what was stored"
        return data

    def _read_confirmed(self, state: MemWalState) -> _Confirmed | str:
        try:
            found = _Confirmed.model_validate_json(
                self._objects.get(_CONFIRMED, _CONFIRMED_BYTES_MAX)
            )
        except Missing:
            return "the snapshot was not confirmed"
        except (ValidationError, Corruption):
            return f"{_CONFIRMED}, which confirms the snapshot, can't be read"
        if found.taken_at_millis != state.snapshot_ts_millis:
            return "the snapshot was not confirmed: its run has not ended, or was killed"
        return found


def decode_snapshot(data: bytes) -> tuple[ShardManifest, ...]:
    """A snapshot's rows, each checked as the manifest that it was made from.

    Of generations the numbers and paths are known, and of shards all but whether they are sealed.
    Raises Corruption, Unsupported.
    """
    check_data_file(data, len(data))
    rows = _read_table(data)
    fields = [name for name in rows.column_names if name.startswith(FIELD_PREFIX)]
    try:
        entries = [
            {name.removeprefix(FIELD_PREFIX): encode_value(rows[name][place]) for name in fields}
            for place in range(len(rows))
        ]
        found = [
            _build_manifest(row, values)
            for row, values in zip(rows.drop(fields).to_pylist(), entries, strict=True)
        ]
    except KeyError as error:
        raise Unsupported(
            "MW-N04", f"is no shard snapshot of memwal's: it has no column {error}"
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise Corruption("MW-N03", f"is no shard snapshot: {error!r}") from None
    if len({manifest.shard_id for manifest in found}) < len(found):
        raise Corruption("MW-N03", "has a shard twice")
    return tuple(found)


def _build_manifest(row: Mapping[str, Any], entries: Mapping[str, bytes | None]) -> ShardManifest:
    shard_id = ShardId(str(UUID(bytes=row["shard_id"])))
    manifest = ShardManifest(
        shard_id=shard_id,
        version=row["version"],
        writer_epoch=row["writer_epoch"],
        current_generation=row["current_generation"],
        replay_after_wal_entry_position=row["replay_after_wal_entry_position"],
        wal_entry_position_last_seen=row["wal_entry_position_last_seen"],
        shard_spec_id=row["shard_spec_id"],
        flushed_generations=tuple(FlushedGeneration(**g) for g in row["flushed_generations"]),
        shard_field_entries=tuple((k, v) for k, v in entries.items() if v is not None),
    )
    encoded = codec.encode_shard_manifest(manifest)
    return codec.decode_shard_manifest(encoded, shard_id=shard_id, version=manifest.version)


def _read_table(data: bytes) -> pa.Table:
    with tempfile.TemporaryDirectory(prefix="memwal-") as folder:
        path = Path(folder) / "snapshot.lance"
        path.write_bytes(data)
        with translated(lambda error: Corruption("MW-N03", tidy_text(error))):
            return LanceFileReader(str(path)).read_all().to_table()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
