"""`memwal inspect`: shows what is stored, decoded."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from memwal.cli.console import RunProgress
from memwal.cli.options import OneTable, ReadFlags, Shard, Version, with_flags
from memwal.cli.output import Show
from memwal.format.layout import parse_shard_id
from memwal.jobs.inspect.show import show_wal

inspect_app = typer.Typer(help="Shows what is stored, decoded.", no_args_is_help=True)


def _inspect(
    what: str,
    table: str,
    flags: ReadFlags,
    *,
    shard: str | None = None,
    version: int | None = None,
    shown_max: int = 1000,
    show: Show | None = None,
) -> NoReturn:
    def work(progress: RunProgress) -> dict[str, object]:
        from memwal.jobs.inspect.job import run_inspect

        return run_inspect(
            what,
            flags.tables([table])[0],
            shard=None if shard is None else parse_shard_id(shard),
            version=version,
            untested_lance_allowed=flags.allow_untested_lance,
            shown_max=shown_max,
        )

    flags.output(f"inspect {what}", [table]).run_document(work, show)


@inspect_app.command("index")
@with_flags(ReadFlags)
def inspect_index(table: OneTable, *, version: Version = None, flags: ReadFlags) -> None:
    """The MemWAL index details of a table version."""
    _inspect("index", table, flags, version=version)


@inspect_app.command("manifest")
@with_flags(ReadFlags)
def inspect_manifest(table: OneTable, *, version: Version = None, flags: ReadFlags) -> None:
    """A table version's manifest file, as far as memwal reads it."""
    _inspect("manifest", table, flags, version=version)


@inspect_app.command("shard")
@with_flags(ReadFlags)
def inspect_shard(
    table: OneTable, *, shard: Shard = None, version: Version = None, flags: ReadFlags
) -> None:
    """Shard manifests, next to the table's merge progress."""
    _inspect("shard", table, flags, shard=shard, version=version)


@inspect_app.command("wal")
@with_flags(ReadFlags)
def inspect_wal(
    table: OneTable,
    *,
    shard: Shard = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="The newest N entries of a shard.")
    ] = 1000,
    flags: ReadFlags,
) -> None:
    """WAL entries: position, epoch, rows, bytes, age, sentinels, and what covers them."""
    _inspect("wal", table, flags, shard=shard, shown_max=limit, show=show_wal)
