"""Checks what a run is asked to do before it becomes part of a command line.

It serves runs of the shipped DAGs, which people who can't read a connection may start, and the
operators' fields. Pure, and free of Airflow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any
from uuid import UUID

from memwal.config import Config, mask_address
from memwal.config.requests import describe_option
from memwal.errors import Usage
from memwal.options import DeclaredOption, Kind
from memwal.text import one_line

NAME_CHARACTERS_MAX = 2_048
_BEGINNING = re.compile("[0-9a-fA-F][0-9a-fA-F-]{0,30}")
_TRUE, _FALSE, _UNSAID = {"true", "1", "yes"}, {"false", "0", "no"}, {"none", ""}


def check_name(what: str, name: Any) -> str:
    """Return the name of a table, an index, ... if it is safe for a command. Raises Usage.

    A name that begins with a dash could be taken for an option.
    """
    if not isinstance(name, str) or not name.strip():
        raise Usage(f"{what} {name!r}: expected a name")
    if name.startswith("-"):
        raise Usage(f"{what} {mask(name)}: a name can't begin with a dash")
    if len(name) > NAME_CHARACTERS_MAX:
        raise Usage(f"{what} {mask(name)}: longer than {NAME_CHARACTERS_MAX} characters")
    if one_line(name) != name:
        raise Usage(f"{what} {mask(name)}: a name can't hold control characters or direction marks")
    return name


def parse_shard(shard: Any) -> str:
    """Return a shard's id in canonical form, or how an id begins. Raises Usage."""
    text = check_name("shard", shard)
    if _BEGINNING.fullmatch(text):
        return text
    try:
        return str(UUID(text))
    except ValueError:
        raise Usage(f"shard {mask(text)}: expected a UUID, or how one begins") from None


def mask(text: str) -> str:
    """Quote a text from outside in a message: on one line, short, without an address's secrets."""
    return repr(mask_address(text)[:200])


def parse_tables(tables: Any) -> list[str]:
    """Return the names of one table or several, each once. Raises Usage."""
    named = [tables] if isinstance(tables, str) else list(tables or ())
    return list(dict.fromkeys(check_name("table", table) for table in named))


def build_words(
    options: Sequence[str], tables: Sequence[str], sources: Sequence[str] = ()
) -> list[str]:
    """Return the options, then tables and sources after `--`, which keeps them from being options.

    Raises Usage, also if no table is named: some commands would then choose tables themselves.
    """
    named = parse_tables(tables)
    if not named:
        raise Usage("no table is named")
    return [*options, "--", *named, *(check_name("source", source) for source in sources)]


def find_configured_tables(tables: Any, config: Config) -> list[str]:
    """Return the tables by their names in the configuration, those of a higher priority first.

    Raises Usage for any other table.

    An address that the configuration lists stands for its name, and so for its settings. Any other
    address is refused unless `[airflow] any_address` is set, because a job may have credentials
    that the person who starts it lacks. If two names stand for one address, only the first one
    given is kept: two jobs would get in each other's way.
    """
    names = {section.uri.rstrip("/"): name for name, section in reversed(config.tables.items())}
    found: dict[str, str] = {}
    for table in parse_tables(tables):
        known = table if table in config.tables else names.get(table.rstrip("/"))
        if known is None and not config.airflow.any_address:
            raise Usage(
                f"table {mask(table)}: not in the configuration; name one of its tables, or set "
                "`any_address = true` in [airflow] to let runs work on any address"
            )
        # Without its slash: a run names tables, and no folder of them.
        named = known or table.rstrip("/") or table
        found.setdefault(_find_place(named, config), named)
    return sorted(found.values(), key=lambda name: -config.find_priority(name))


def _find_place(table: str, config: Config) -> str:
    """Identify a table's place: in another store, the same address is another table."""
    section = config.tables.get(table)
    if section is None:
        return table.rstrip("/")
    return f"{section.uri.rstrip('/')} {sorted((section.storage_options or {}).items())}"


def check_keys(conf: Mapping[str, Any] | None, params: Mapping[str, Any]) -> None:
    """Raise Usage for a key in a run's conf that is not a param of the DAG, or has no effect.

    Airflow checks the values of the params, but lets any other key pass.
    """
    given = conf or {}
    for key in given:
        if key not in params:
            near = get_close_matches(key, params, 1)
            meant = f" (is {near[0]!r} meant?)" if near else ""
            text = f"unknown key {mask(key)} in the run's conf{meant}; the DAG takes "
            raise Usage(text + ", ".join(params))
    for key, value in given.items():
        if params[key] != value:
            raise Usage(
                f"{key!r} in the run's conf has no effect: [core] dag_run_conf_overrides_params is "
                "off in this Airflow"
            )


def is_true(value: Any) -> bool:
    """Whether a field is true, also as the text that a template rendered. Raises Usage."""
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE | _UNSAID:
        raise Usage(f"{mask(str(value))}: expected true or false")
    return text in _TRUE


def build_option(declared: DeclaredOption, value: Any) -> list[str]:
    """Return a field's value as words for the command; none for a field without one. Raises Usage.

    Option and value are one word, so that no value can be taken for another option.
    """
    kind = declared.kind
    if kind in (Kind.SWITCH, Kind.EITHER):
        is_no = kind is Kind.EITHER and str(value).strip().lower() in _FALSE
        return [declared.flag] if is_true(value) else [f"--no-{declared.flag[2:]}"] * is_no
    found: list[Any] = [value]
    if kind is Kind.PAIRS:
        found = [f"{name}={given}" for name, given in (value or {}).items()]
    elif kind is Kind.CHOICES:
        found = [",".join(choice for choice in declared.choices if choice in (value or ()))]
    elif isinstance(value, list | tuple):
        found = list(value)
    # A template that renders to nothing gives a text.
    return [
        f"{declared.flag}={_check_value(declared, item)}"
        for item in found
        if item not in (None, "", "None", [])
    ]


def _check_value(declared: DeclaredOption, value: Any) -> Any:
    if declared.kind is not Kind.LIST and declared.option.parse is None:
        return value
    text = check_name(declared.flag.removeprefix("--"), value)
    try:
        return text if declared.option.parse is None else declared.option.parse(text)
    except Usage as error:
        raise Usage(str(error).replace(repr(text), mask(text))) from None


def describe_field(declared: DeclaredOption) -> str:
    """Say what a field does; other options in the text are called as fields are."""
    text = describe_option(declared).rstrip(".")
    return re.sub("--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)
