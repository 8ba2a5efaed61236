"""A session of LanceDB's client, run by the Python that has it; each upsert is put on record.

python -m tests.torture.lancedb_writer FILE     # a JSON document: `main` says what it has
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
from lancedb import LsmWriteSpec

from tests.torture.history import History, now


def main(asked: dict[str, Any]) -> None:
    """Connect to `database`, give its table `t` a write `spec`, if there is one, and do `steps`.

    A step has the `op` of the history, its `row`, `pause` in seconds, and whether a flush follows.
    """
    table = lancedb.connect(asked["database"], storage_options=asked["storage"]).open_table("t")
    if asked["spec"]:
        kind, *given = asked["spec"]
        table.set_lsm_write_spec(getattr(LsmWriteSpec, kind)(*given))
    history, touched = History(asked["folder"]), set()
    for step in asked["steps"]:
        history.add("op", **step["op"])
        row = pa.Table.from_pylist([step["row"]], schema=table.schema)
        upsert = table.merge_insert(asked["key"]).when_matched_update_all()
        upsert.when_not_matched_insert_all().execute(row)
        history.add("ack", id=step["op"]["id"])
        touched.add(step["op"]["shard"])
        if step["flushes"]:
            begin = now()
            table.close_lsm_writers()
            for shard in touched:
                facts = {"table": step["op"]["table"], "session": step["op"]["session"]}
                history.add("flush", **facts, shard=shard, begin=begin)
            touched.clear()
        time.sleep(step["pause"])


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    try:
        main(asked)
    except Exception as error:  # such as: another writer has fenced it
        History(asked["folder"]).add("stop", who="LanceDB", signal=str(error)[:300])
        sys.exit(1)
