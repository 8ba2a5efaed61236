"""`memwal shard`: which shard a key's rows go to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import OneTable
from memwal.cli.output import Document
from memwal.report import Section

if TYPE_CHECKING:
    from rich.console import Console

Key = Annotated[
    list[str],
    typer.Option(
        "--key",
        metavar="K=V",
        help="A column that the shard depends on, and its value; repeatable. Bytes as 0x….",
    ),
]


class ShardDocument(Section):
    """`memwal shard`. `exists`: whether a writer has made it yet."""

    table: str
    shard_id: str
    exists: bool


@command()
def shard(table: OneTable, key: Key, *, flags: ReadFlags) -> Document:
    """Show which shard a key's rows go to.

    It is the id that pylance's `mem_wal_writer` takes. For many keys: `memwal.shard_of` in Python.
    """
    from memwal.ingest.target import IngestTable
    from memwal.ingest.values.python_rows import read_rows
    from memwal.read.table import parse_keys
    from memwal.rows.pairs import Lenience
    from memwal.run.stores import check_lance_version, open_stores

    found = flags.table(table)
    check_lance_version(flags.allow_untested_lance)
    stores = open_stores(found.find_uri(), found.storage_options)
    looked = IngestTable.read(stores, stores.views.table(), None)
    row = parse_keys(key, looked.schema)
    [shard_id] = looked.find_shards(
        read_rows([row], looked.schema, None, Lenience(missing=True))
    ).to_pylist()
    exists = shard_id in looked.view.shard_ids
    answer = ShardDocument(table=found.name, shard_id=shard_id, exists=exists)
    return Document(content=answer.to_json(), show=_show)


def _show(content: Mapping[str, Any], console: Console) -> None:
    state = "" if content["exists"] else "  (not made yet: the first writer makes it)"
    console.print(f"{content['shard_id']}{state}", soft_wrap=True)
