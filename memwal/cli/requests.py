"""Makes a command's options out of its job's request, and the request out of what was given.

The parsers raise Usage for an invalid value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from memwal.cli.completion import offer, offer_checkpoints
from memwal.config.requests import check_request, describe_option, find_bounds
from memwal.errors import Usage
from memwal.options import DeclaredOption, Kind, convert_value, list_options
from memwal.text import parse_seconds

_METAVARS = {Kind.NUMBER: "N", Kind.PAIRS: "K=V", Kind.LIST: "NAME"}
# Durations and sizes come as text, with their units; what a type or a choice can't say, as well.
_TYPES: Mapping[Kind, Any] = {
    Kind.SWITCH: bool,
    Kind.EITHER: bool | None,
    Kind.LIST: list[str] | None,
    Kind.PAIRS: list[str] | None,
}


def make_parameters(request: type) -> dict[str, tuple[Any, Any]]:
    """Return the type, annotated for typer, and the default of every option of a request."""
    return {declared.name: _make_parameter(declared) for declared in list_options(request)}


def read_request(request: type, values: Mapping[str, Any]) -> Any:
    """Make the request that these parsed parameters stand for. Raises Usage."""
    read = {d.name: _read(d, values[d.name]) for d in list_options(request)}
    made = request(**{name: value for name, value in read.items() if value is not None})
    return check_request(made, lambda declared: declared.flag)


def _make_parameter(declared: DeclaredOption) -> tuple[Any, Any]:
    option, kind = declared.option, declared.kind
    flag = f"{declared.flag}/--no-{declared.flag[2:]}" if kind is Kind.EITHER else declared.flag
    metavar = option.metavar or ("|".join(declared.choices) or _METAVARS.get(kind))
    bounds: dict[str, Any] = {}
    default = declared.shown_default
    if kind is Kind.NUMBER:
        least, most = find_bounds(declared)
        bounds = {"min": least, "max": most}
    help_text = describe_option(declared)
    if kind in (Kind.LIST, Kind.PAIRS) and not _is_one_text(declared):
        help_text += " Repeatable."
    offered = offer_checkpoints if declared.name == "checkpoint" else offer(declared.choices)
    said = typer.Option(flag, metavar=metavar, help=help_text, autocompletion=offered, **bounds)
    if kind is Kind.SWITCH:
        default = bool(declared.default)
    value: Any = _TYPES.get(kind) or (declared.type if kind is Kind.NUMBER else str)
    if _is_one_text(declared):
        value = str | None
    elif default is None and kind not in _TYPES:
        value = value | None
    return Annotated[value, said], default


def _read(declared: DeclaredOption, value: Any) -> Any:
    """Read a parameter's value; None stands for the default."""
    if value is None:
        return None
    if declared.kind is Kind.DURATION:
        return parse_duration(value, declared.flag)
    if declared.kind is Kind.SIZE:
        return parse_size(value, declared.flag)
    if declared.kind is Kind.PAIRS:
        form = declared.option.metavar or "KEY=VALUE"
        return tuple(parse_pairs(value, declared.flag, form).items())
    if declared.kind is Kind.CHOICES:
        return [name.strip() for name in value.split(",")]
    if _is_one_text(declared):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


def _is_one_text(declared: DeclaredOption) -> bool:
    """Whether a list comes as one text with commas."""
    return declared.kind is Kind.LIST and "," in (declared.option.metavar or "")


def parse_duration(text: str, option: str) -> float:
    """Parse seconds from `90s`, `10m`, `1h`, `7d` or `500ms`.

    A number without a unit is refused: it is too ambiguous to delete by.
    """
    try:
        if text[-1:].isalpha():
            return parse_seconds(text)
    except ValueError:
        pass
    raise Usage(
        f"{option} {text!r}: expected a number and a unit, such as 90s, 10m, 1h, 7d or 500ms"
    )


def parse_size(text: str | None, option: str) -> int | None:
    """Parse bytes from `268435456`, `256MB` or `1GiB`; None for None."""
    return None if text is None else convert_value(Kind.SIZE, text, option)


def parse_engine(name: str | None) -> str | None:
    """Return the engine's name if it is valid."""
    if name not in (None, "auto", "spark", "local"):
        raise Usage(f"--engine {name!r}: expected auto, spark or local")
    return name


def parse_log_format(name: str | None) -> str | None:
    """Return the format of lines on stderr if it is valid."""
    if name not in (None, "text", "json"):
        raise Usage(f"--log-format {name!r}: expected text or json")
    return name


def parse_pairs(pairs: list[str], option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Parse an option's `K=V` texts. Raises Usage naming the bad one (not its value)."""
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Usage(f"{option} {key!r}: expected {form}")
        if options.setdefault(key, value) != value:
            raise Usage(f"{option} {key!r}: given twice")
    return options
