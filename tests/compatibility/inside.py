"""What either build does within itself: each function prints what it found, as JSON.

No command shows these documents by themselves. Nothing but memwal is imported here, since the
tests' helpers need not suit another build.
"""

from __future__ import annotations

import json

from memwal.errors import MemWalError
from memwal.jobs.rescue.plan import RescueMark, SignOfLife
from memwal.jobs.rescue.store import StoredShardWal
from memwal.model import ShardId
from memwal.rows.policy import make_policy, parse_policy
from memwal.run.stores import open_stores


def store_mark(uri: str, shard: str) -> None:
    """The mark of a rescue that is about to claim the shard."""
    sign = SignOfLife(what="WAL entry 7", at_nanos=5)
    mark = RescueMark(writer_epoch=3, highest_position=7, sign=sign, made_at_nanos=0)
    StoredShardWal(open_stores(uri, {}).objects).mark(ShardId(shard), mark)
    print("null")


def read_mark(uri: str, shard: str) -> None:
    """The mark, as the next rescue takes it."""
    try:
        found = StoredShardWal(open_stores(uri, {}).objects).read(ShardId(shard))
    except MemWalError as error:
        print(json.dumps(str(error)))
        return
    assert found is not None and found.mark is not None
    mark = found.mark
    told = [mark.writer_epoch, mark.highest_position, mark.sign.what, mark.sign.at_nanos]
    print(json.dumps(told))


def write_policy() -> None:
    """A row-merge policy, as it is stored in a table's configuration."""
    columns = {"n": ("sum", None), "tags": ("list_append", 5)}
    print(json.dumps(make_policy(columns, "kind", None).as_text()))


def read_policy(text: str) -> None:
    """The policy, or why it is refused."""
    try:
        print(json.dumps(parse_policy(text).as_document()))
    except MemWalError as error:
        print(json.dumps(str(error)))
