"""`memwal inspect`: shows what is stored, decoded."""

from __future__ import annotations

from typing import NoReturn

import typer

from memwal.config import resolve_table
from memwal.console import RunProgress
from memwal.layout import parse_shard_id
from memwal.options import (
    ConfigFile,
    Debug,
    Json,
    OneTable,
    Shard,
    StorageOption,
    Untested,
    Version,
)
from memwal.output import Output, load

inspect_app = typer.Typer(help="Shows what is stored, decoded.", no_args_is_help=True)


def _inspect(
    what: str,
    table: str,
    options: tuple[str | None, list[str] | None, bool, bool],
    *,
    as_json: bool,
    shard: str | None = None,
    version: int | None = None,
) -> NoReturn:
    config, storage_option, debug, untested = options

    def work(progress: RunProgress) -> dict[str, object]:
        from jobs._inspect import run_inspect

        loaded, given = load(config, storage_option)
        return run_inspect(
            what,
            resolve_table(table, loaded, given),
            shard=None if shard is None else parse_shard_id(shard),
            version=version,
            untested_lance_allowed=untested,
        )

    Output(f"inspect {what}", as_json=as_json, debug=debug).run_document(work)


@inspect_app.command("index")
def inspect_index(
    table: OneTable,
    version: Version = None,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
) -> None:
    """The MemWAL index details of a table version."""
    options = (config, storage_option, debug, allow_untested_lance)
    _inspect("index", table, options, as_json=as_json, version=version)


@inspect_app.command("manifest")
def inspect_manifest(
    table: OneTable,
    version: Version = None,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
) -> None:
    """A table version's manifest file, as far as memwal reads it."""
    options = (config, storage_option, debug, allow_untested_lance)
    _inspect("manifest", table, options, as_json=as_json, version=version)


@inspect_app.command("shard")
def inspect_shard(
    table: OneTable,
    shard: Shard = None,
    version: Version = None,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
) -> None:
    """Shard manifests, next to the table's merge progress."""
    options = (config, storage_option, debug, allow_untested_lance)
    _inspect("shard", table, options, as_json=as_json, shard=shard, version=version)


@inspect_app.command("wal")
def inspect_wal(
    table: OneTable,
    shard: Shard = None,
    as_json: Json = False,
    config: ConfigFile = None,
    storage_option: StorageOption = None,
    debug: Debug = False,
    allow_untested_lance: Untested = False,
) -> None:
    """WAL entries: position, epoch, generation, rows, sentinels."""
    options = (config, storage_option, debug, allow_untested_lance)
    _inspect("wal", table, options, as_json=as_json, shard=shard)
