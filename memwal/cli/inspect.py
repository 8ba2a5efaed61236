"""`memwal inspect`: shows what is stored, decoded."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import OneTable, Version
from memwal.cli.output import Document
from memwal.cli.shared import App
from memwal.format.layout import parse_shard

Shard = Annotated[str | None, typer.Option("--shard", metavar="ID", help="Only this shard.")]
Key = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="K=V",
        help="A column that the shard depends on, and its value; repeatable. Bytes as 0x….",
    ),
]
EntriesMax = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, help="The newest N entries of a shard.")
]

inspect_app = App(help="Show what is stored, decoded.", no_args_is_help=True)


@inspect_app.command("index")
@command(job="inspect index")
def inspect_index(table: OneTable, *, version: Version = None, flags: ReadFlags) -> Document:
    """The MemWAL index details of a table version."""
    return _inspect("index", table, flags, version=version)


@inspect_app.command("manifest")
@command(job="inspect manifest")
def inspect_manifest(table: OneTable, *, version: Version = None, flags: ReadFlags) -> Document:
    """A table version's manifest file, as far as memwal reads it."""
    return _inspect("manifest", table, flags, version=version)


@inspect_app.command("shard")
@command(job="inspect shard")
def inspect_shard(
    table: OneTable,
    *,
    shard: Shard = None,
    key: Key = None,
    version: Version = None,
    flags: ReadFlags,
) -> Document:
    """Shard manifests, next to merge progress; of a key's shard.

    With --key, `shard_id` is where the key's rows go, and what pylance's `mem_wal_writer` takes;
    without a manifest, no writer has made it yet. For many keys: `memwal.shard_of` in Python.
    """
    of_key = _find_shard(table, key, flags) if key else None
    return _inspect("shard", table, flags, shard=shard, version=version, of_key=of_key)


@inspect_app.command("wal")
@command(job="inspect wal")
def inspect_wal(
    table: OneTable, *, shard: Shard = None, limit: EntriesMax = 1000, flags: ReadFlags
) -> Document:
    """WAL entries: position, epoch, rows, age, what covers them."""
    from memwal.jobs.inspect import show_wal

    found = _inspect("wal", table, flags, shard=shard, shown_max=limit)
    return Document(content=found.content, show=show_wal)


def _inspect(
    what: str, table: str, flags: ReadFlags, *, shard: str | None = None, **more: Any
) -> Document:
    from memwal.jobs.inspect import run_inspect

    found = run_inspect(
        what,
        flags.table(table),
        shard=None if shard is None else parse_shard(shard),
        untested_lance_allowed=flags.allow_untested_lance,
        **more,
    )
    return Document(content=found.to_json())


def _find_shard(table: str, key: list[str], flags: ReadFlags) -> str:
    """The shard that an ingest would write the row to."""
    from memwal.ingest.target import IngestTable
    from memwal.ingest.values.python_rows import read_rows
    from memwal.read.table import parse_keys
    from memwal.rows.pairs import Lenience
    from memwal.run.stores import check_lance_version, open_stores

    check_lance_version(flags.allow_untested_lance)
    found = flags.table(table)
    stores = open_stores(found.find_uri(), found.storage_options)
    looked = IngestTable.read(stores, stores.views.table(), None)
    row = read_rows([parse_keys(key, looked.schema)], looked.schema, None, Lenience(missing=True))
    return str(looked.find_shards(row)[0])
