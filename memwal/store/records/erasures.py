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
from typing import TYPE_CHECKING, Any

from memwal.errors import Corruption, Missing
from memwal.format import layout
from memwal.model import Erasure
from memwal.ports import OBJECT_BYTES_MAX, Objects
from memwal.store.records.documents import NEWER, delete_document, put_document, read_document
from memwal.threads import side_by_side

if TYPE_CHECKING:
    import pyarrow as pa

_READERS_MAX = 16


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
        put_document(self._objects, path, record)

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
        delete_document(self._objects, self.keys_path(erasure_id))

    @staticmethod
    def keys_path(erasure_id: str) -> str:
        """Where the keys of an erasure are stored."""
        return f"{layout.erasure_folder(erasure_id)}/keys.arrow"

    def _read(self, erasure_id: str) -> Erasure | None:
        path = f"{layout.erasure_folder(erasure_id)}/record.json"
        error = Corruption(
            "MW-Z05", f"{self._objects.uri}: {path} can't be read as an erasure: {NEWER}"
        )
        found = read_document(
            self._objects,
            path,
            Erasure,
            lambda e: e.erasure_id == erasure_id and _is_sound(e),
            error,
        )
        if found is None:
            return None
        over = found.state == "open" and found.clean_version is not None and found.left == 0
        if over and self.read_keys(erasure_id) is None:
            # Only the run that ends it forgets the keys: killed before its last word, it is done.
            return replace(found, state="done", ended_at=found.looked_at)
        return found


def _is_sound(found: Erasure) -> bool:
    numbers = [n for m in found.marks.values() for n in (m.position, m.generation)]
    shards = (*found.marks, *found.planned, *found.written)
    return all(0 <= n <= layout.U64_MAX for n in numbers) and all(
        map(layout.is_shard_folder, shards)
    )
