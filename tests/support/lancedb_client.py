"""A LanceDB client that does what it is told, line by line; run by the Python that has LanceDB.

It reads JSON from stdin, {"do": …}, and answers each line with one: what it did, or the error.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import lancedb
import pyarrow as pa
from lancedb import LsmWriteSpec
from lancedb.index import FTS, BTree

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
    ]
)


TEXTS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


class Client:
    """A connection that always reads what is there now, and its one table."""

    def connect(self, folder: str) -> None:
        """Begin anew, in another folder."""
        self._db = lancedb.connect(folder, read_consistency_interval=timedelta(0))
        self._table: Any = None
        self._names: dict[str, Any] = {}

    def create(self, spec: list[Any]) -> None:
        self._table = self._db.create_table("t", schema=SCHEMA)
        self._table.set_unenforced_primary_key(["id"])
        kind, *given = spec
        self._table.set_lsm_write_spec(getattr(LsmWriteSpec, kind)(*given))

    def clone(self, name: str) -> None:
        """Go on with a clone of the table."""
        self._table = self._db.clone_table(name, self._table.uri)

    def put(self, rows: list[dict[str, Any]]) -> None:
        """Upsert the rows, one by one: a call may write to one shard only, a writer too."""
        for row in rows:
            upsert = self._table.merge_insert("id").when_matched_update_all()
            one = pa.Table.from_pylist([row], schema=SCHEMA)
            upsert.when_not_matched_insert_all().execute(one)
            self._table.close_lsm_writers()

    def change_spec(self, spec: list[Any], index: str | None = None) -> None:
        """Another write spec; with an index on a column, which writers keep from then on."""
        self._table.unset_lsm_write_spec()
        kind, *given = spec
        wanted = getattr(LsmWriteSpec, kind)(*given)
        if index is not None:
            self._table.create_index(index, config=BTree())
            wanted = wanted.with_maintained_indexes([f"{index}_idx"])
        self._table.set_lsm_write_spec(wanted)

    def delete(self, where: str) -> None:
        self._table.delete(where)

    def update(self, where: str, values: dict[str, Any]) -> None:
        self._table.update(where=where, values=values)

    def unsupported(self) -> list[str]:
        """What a local table has no compactor for."""
        found = []
        for name in ("flush_lsm", "compact_lsm", "checkpoint_lsm", "get_lsm_stats"):
            try:
                getattr(self._table, name)()
            except NotImplementedError:
                found.append(name)
        return found

    def read(self) -> list[dict[str, Any]]:
        return self._table.to_arrow().to_pylist()

    def run(self, code: str) -> None:
        """Lines of a program, which know what those before them have named."""
        exec(code, self._names)

    def evaluate(self, code: str) -> Any:
        return eval(code, self._names)

    def create_texts(self, texts: list[str]) -> None:
        """A table of texts with a full-text index that its writers keep."""
        first = pa.table({"id": range(len(texts)), "text": texts}, schema=TEXTS)
        self._table = self._db.create_table("texts", first)
        self._table.set_unenforced_primary_key("id")
        self._table.create_index("text", config=FTS(with_position=True))
        spec = LsmWriteSpec.unsharded().with_maintained_indexes(["text_idx"])
        self._table.set_lsm_write_spec(spec)

    def put_texts(self, texts: dict[str, str]) -> None:
        """Upsert texts by key."""
        rows = {"id": [int(key) for key in texts], "text": list(texts.values())}
        upsert = self._table.merge_insert("id").when_matched_update_all()
        upsert.when_not_matched_insert_all().execute(pa.table(rows, schema=TEXTS))
        self._table.close_lsm_writers()

    def search(self, query: str, where: str | None = None) -> list[int]:
        """The keys of the texts that match, over base and MemWAL."""
        found = self._table.search(query, query_type="fts", fts_columns="text").use_lsm(True)
        if where is not None:
            found = found.where(where, prefilter=True)
        return found.limit(1000).to_arrow()["id"].to_pylist()


def main() -> None:
    client = Client()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"done": getattr(client, asked.pop("do"))(**asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
