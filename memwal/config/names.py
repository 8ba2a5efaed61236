"""What TABLE may be besides an address: a configured name, a glob of such names, or a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from memwal.config.namespaces import NamespacedTable, find_namespaced
from memwal.errors import Usage
from memwal.text import mask_address

if TYPE_CHECKING:
    from memwal.config import Config


@dataclass(frozen=True, kw_only=True)
class Folder:
    """`FOLDER/`: the Lance tables below it, however many, or itself if it is one."""

    name: str

    def match(self, paths: Iterable[str]) -> list[str]:
        """The addresses of the tables that were found at these paths below it."""
        return [self.name + path if path else self.name.rstrip("/") for path in paths]


Glob = NamespacedTable | Folder
ListNames = Callable[[Glob], list[str]]
"""The tables beside the one that a glob in a namespace names, or below a folder."""

_NAMED_MAX = 10
_WILD = "*?[]"


def is_address(table: str) -> bool:
    """Whether TABLE says a place, and so can be no name in the configuration."""
    return "/" in table or table in (".", "..")


def is_glob(table: str) -> bool:
    """Whether TABLE may stand for several names."""
    if is_address(table):
        return table.endswith("/")
    return any(sign in table for sign in _WILD)


def find_glob(table: str, config: Config) -> Glob | None:
    """What has to be listed to know which tables TABLE stands for. Raises Usage."""
    if not is_glob(table):
        return None
    if is_address(table):
        return Folder(name=table)
    return find_namespaced(table, config.namespaces)


def find_names(
    given: Sequence[str],
    config: Config,
    list_names: ListNames,
    *,
    everything: bool = False,
) -> list[str]:
    """TABLE arguments with each glob replaced by the names that it matches, in the file's order.

    A table that is called just that comes before what it matches; so does, where nothing matches, a
    folder. `list_names` asks a namespace, or lists a folder. Raises Usage for a glob that matches
    nothing, and where nothing is named; and what asking raises.
    """
    check_named(given, everything=everything, config=config)
    if everything:
        if not config.tables:
            raise Usage(f"--all: no tables: {_where('', config)}; add [tables.NAME] with a uri")
        return list(config.tables)
    return [name for table in given for name in _choose(table, config, list_names)]


def match_names(table: str, config: Config) -> list[str]:
    """The names that TABLE stands for; none where it is not among them, or an address."""
    if is_address(table) or table in config.tables:
        return [table] if table in config.tables else []
    names = config.tables if is_glob(table) else ()
    return [name for name in names if fnmatchcase(name, table) and not is_address(name)]


def check_named(
    given: Sequence[str], *, everything: bool = False, config: Config | None = None
) -> None:
    """Raise Usage unless tables are named, or all asked for, and not both."""
    if everything and given:
        raise Usage("--all is every table of the configuration: name none beside it")
    if not everything and not given:
        known = "" if config is None else f" ({_list(config.tables)})" if config.tables else ""
        raise Usage(f"name the tables, or give --all for those of the configuration{known}")


def _choose(table: str, config: Config, list_names: ListNames) -> list[str]:
    found = match_names(table, config)
    if found or not is_glob(table):
        return found or [table]
    glob = find_glob(table, config)
    if isinstance(glob, Folder):
        return glob.match(list_names(glob)) or [table.rstrip("/") or table]
    if glob is None and Path(table).exists():
        return [table]
    if glob is None:
        names, wanted, where = list(config.tables), table, _where(table, config)
    elif any(map(is_glob, glob.id[:-1])):
        raise Usage(f"{table}: only the last part of a name in a namespace may be a glob")
    else:
        names, wanted = list_names(glob), glob.id[-1]
        where = f"namespace {glob.namespace} has {_list(names) or 'none'} there"
        found = glob.match(names)
    if found:
        return found
    near = suggest(wanted.translate(dict.fromkeys(map(ord, _WILD))), names)
    raise Usage(f"{mask_address(table)}: no name matches: {where}{near}")


def explain_unknown(table: str, config: Config) -> str | None:
    """What is wrong where nothing has this name; None for an address."""
    if is_address(table) or not table:
        return None
    where = "no configuration file was read" if config.file is None else f"not in {config.file}"
    near = suggest(table, config.tables)
    namespace, colon, _ = table.partition(":")
    if colon and config.file is not None:
        where = f"no [namespaces.{namespace}] in {config.file}"
        near = near or suggest(namespace, config.namespaces)
    return f"{mask_address(table)}: no such table: {where}{near}, and no folder here has this name"


def suggest(name: str, names: Iterable[str]) -> str:
    """Which of the names may be meant, to go behind what is wrong with one."""
    near = get_close_matches(name, list(names), 3)
    return f" (is {' or '.join(near)} meant?)" if near else ""


def _where(table: str, config: Config) -> str:
    if config.file is None:
        return "no configuration file was read"
    namespace, colon, _ = table.partition(":")
    if colon:
        near = suggest(namespace, config.namespaces)
        return f"no [namespaces.{namespace}] in {config.file}{near}"
    return f"{config.file} has {_list(config.tables) or 'none'}"


def _list(names: Iterable[str]) -> str:
    shown = [*islice(names, _NAMED_MAX + 1)]
    return ", ".join(shown[:_NAMED_MAX]) + (", ..." if len(shown) > _NAMED_MAX else "")
