"""What a shell's completion offers. It shows no error: then there is nothing to offer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from memwal.config import load_config, read_environment_options, resolve_table
from memwal.errors import MemWalError


def offer(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Offer fixed words."""
    return lambda incomplete: [word for word in choices if word.startswith(incomplete)]


def offer_tables(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the tables of the configuration."""
    try:
        return offer(list(load_config(context.params.get("config")).tables))(incomplete)
    except MemWalError:
        return []


def offer_checkpoints(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the checkpoints of the command's table."""
    from memwal.run.stores import open_stores

    try:
        config = load_config(context.params.get("config"))
        # An option without its value ends the parsing: then the table is among what is left.
        name = context.params.get("table") or next(iter(context.args), "")
        table = resolve_table(name, config, read_environment_options())
        stores = open_stores(table.find_uri(), table.storage_options)
        return offer([kept.name for kept in stores.checkpoints.list()])(incomplete)
    except MemWalError:
        return []
