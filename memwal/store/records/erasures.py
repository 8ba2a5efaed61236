"""Erasures: what each has done so far, under `_maintenance/erasures/{id}/`.

record.json   where the erasure stands; rewritten after each step
keys.arrow    its keys, while it is open; deleted before the record says that it is done
proof.jsonl   the newest proof: one object a line

The keys are stored in clear, and only while the table itself still holds them: then they give
nothing away that is not there anyhow, and let any later run finish. A digest of a key would not be
safe to keep: most keys can be guessed. So what stays names objects, and no keys.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from memwal.errors import Corruption, Missing, StoreUnavailable, Usage
from memwal.format import layout
from memwal.model import Erasure
from memwal.ports import DOCUMENT_BYTES_MAX, OBJECT_BYTES_MAX, Objects
from memwal.threads import side_by_side

if TYPE_CHECKING:
    import pyarrow as pa

_READERS_MAX = 16
_FORMAT = 1


class StoredErasures:
    """The erasures of one table."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def list(self) -> Sequence[Erasure]:
        """All that are there, oldest first. Raises Corruption for one that can't be read."""
        names = self._objects.list_folders(layout.ERASURES)
        ids = [name for name in names if layout.parse_erasure_folder(name) is not None]
        read = side_by_side(self._read, ids, _READERS_MAX)
        return sorted((r for r in read if r is not None), key=lambda r: (r.began_at, r.erasure_id))

    def find(self, erasure_id: str) -> Erasure:
        """One of them. Raises Usage when there is none of that id."""
        found = self._read(layout.parse_erasure_id(erasure_id))
        if found is None:
            raise Usage(f"{self._objects.uri}: there is no erasure {erasure_id} (erase list)")
        return found

    def begin(self, record: Erasure, keys: pa.Table) -> None:
        """Store the record, and then the keys: no run leaves keys that no record tells of."""
        import pyarrow as pa

        self.put(record)
        out = io.BytesIO()
        with pa.ipc.new_stream(out, keys.schema) as stream:
            stream.write_table(keys)
        self._objects.put_if_absent(self.keys_path(record.erasure_id), out.getvalue())

    def put(self, record: Erasure) -> None:
        """Store the record in place of the one before it."""
        path = f"{layout.erasure_folder(record.erasure_id)}/record.json"
        document = {"format": _FORMAT, **_adapter().dump_python(record, mode="json")}
        self._objects.put(path, json.dumps(document, indent=1).encode())

    def read_keys(self, erasure_id: str) -> pa.Table | None:
        """The keys of an open erasure; None where they are gone."""
        import pyarrow as pa

        path = self.keys_path(erasure_id)
        try:
            data = self._objects.get(path, OBJECT_BYTES_MAX)
            return pa.ipc.open_stream(data).read_all()
        except Missing:
            return None
        except (pa.ArrowException, OSError) as error:
            raise Corruption("MW-Z05", f"{self._objects.uri}: {path} is torn: {error}") from None

    def drop(self, erasure_id: str) -> None:
        """Delete an erasure that was killed before it stored its keys, and so did nothing."""
        self._objects.delete([f"{layout.erasure_folder(erasure_id)}/record.json"])

    def put_proof(self, erasure_id: str, findings: Iterable[Any]) -> None:
        """Store the newest proof: a line for each of these dataclasses."""
        data = "".join(f"{json.dumps(asdict(found))}\n" for found in findings).encode()
        self._objects.put(f"{layout.erasure_folder(erasure_id)}/proof.jsonl", data)

    def forget_keys(self, erasure_id: str) -> None:
        """Delete the keys. Raises StoreUnavailable when that fails."""
        for path, why in self._objects.delete([self.keys_path(erasure_id)]).failed:
            raise StoreUnavailable(f"{self._objects.uri}: {path} can't be deleted: {why}")

    @staticmethod
    def keys_path(erasure_id: str) -> str:
        """Where the keys of an erasure are stored."""
        return f"{layout.erasure_folder(erasure_id)}/keys.arrow"

    def _read(self, erasure_id: str) -> Erasure | None:
        path = f"{layout.erasure_folder(erasure_id)}/record.json"
        try:
            found = _decode(self._objects.get(path, DOCUMENT_BYTES_MAX))
        except Missing:
            return None
        if found is None or found.erasure_id != erasure_id:
            raise Corruption(
                "MW-Z05",
                f"{self._objects.uri}: {path} can't be read as an erasure: was it made by a newer "
                "memwal? If not, move the file away",
            )
        over = found.state == "open" and found.clean_version is not None and found.left == 0
        if over and self.read_keys(erasure_id) is None:
            # Only the run that ends it forgets the keys: killed before its last word, it is done.
            return replace(found, state="done", ended_at=found.looked_at)
        return found


@cache
def _adapter() -> Any:
    # Imported when asked for: most tables have none.
    from pydantic import TypeAdapter

    return TypeAdapter(Erasure)


def _decode(data: bytes) -> Erasure | None:
    """The erasure; None for bytes that are none, or of another format (invariant 10)."""
    try:
        document = json.loads(data)
        if document.pop("format") != _FORMAT:
            return None
        found: Erasure = _adapter().validate_json(json.dumps(document), strict=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    numbers = [n for m in found.marks.values() for n in (m.position, m.generation)]
    shards = (*found.marks, *found.planned, *found.written)
    sound = all(0 <= n <= layout.U64_MAX for n in numbers) and all(
        map(layout.is_shard_folder, shards)
    )
    return found if sound else None
