"""How an option of a job is declared: once, as an annotated field of the job's request.

    @dataclass(frozen=True, kw_only=True)
    class MergeRequest:
        until_generation: Annotated[
            int | None, Option(meaning="Merge up to this generation.", least=1)
        ] = None

The command line (`memwal.cli.requests`), the keywords of `memwal.Table` (`memwal.run.keywords`),
the operators' fields and the forms of the DAGs (`memwal_airflow`), and the reference are made of
these declarations. Pure.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from numbers import Real
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from memwal.errors import Usage
from memwal.format.layout import parse_shard
from memwal.text import (
    BYTES_EXPECTED,
    SECONDS_EXPECTED,
    format_duration,
    parse_bytes,
    parse_seconds,
)

Request = TypeVar("Request")
Bounds = tuple[float | None, float | None]
"""The least and the most that a number may be; None: no bound."""
PRIORITY = 5  # of a table that has none, of 1 to 9: the highest comes first
Consistency = Literal["latest", "snapshot"]
"""Where a reader takes the shards from: their current manifests, or the shard snapshot."""
SourceFormat = Literal["parquet", "arrow", "csv", "jsonl", "lance"]
"""What a file, or a table, is that an ingest reads."""


class Kind(StrEnum):
    """What an option takes on a command line."""

    SWITCH = "switch"
    EITHER = "either"
    NUMBER = "number"
    DURATION = "duration"
    SIZE = "size"
    TEXT = "text"
    CHOICE = "choice"
    CHOICES = "choices"
    LIST = "list"
    PAIRS = "pairs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """What a field's type and default don't say.

    meaning: one or two sentences; empty for a `setting`, which has its own.
    flag: the word on the command line, if it is not the field's name. A unit such as `_seconds`
        is left out of it: the value has it (`90s`).
    field: the operators' name for it, if it is neither the field's nor the flag's.
    metavar: how a value looks.
    least, most: bounds of a number.
    parse: checks one value of a text or a list, and returns what it stands for.
    setting: the key of memwal.toml that it overrides in one run.
    form: its title in the form of a DAG, for those who start a run by hand; without it, only
        whoever writes a DAG can set it. Not all DAGs have such fields (`memwal_airflow.forms`).
    """

    meaning: str = ""
    flag: str | None = None
    field: str | None = None
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    parse: Callable[[str], Any] | None = None
    setting: str | None = None
    form: str | None = None


Shards = Annotated[
    Sequence[str],
    Option(
        meaning="Only these shards. The beginning of an id is enough.",
        flag="shard",
        metavar="ID",
        parse=parse_shard,
        form="Shards",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredOption:
    """A field of a request that is an option. `type` is its type without None, if it has that."""

    name: str
    type: Any
    is_optional: bool
    kind: Kind
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """The option on a command line, such as `--until-generation`."""
        name = self.name.removesuffix("_seconds") if self.kind is Kind.DURATION else self.name
        return f"--{self.option.flag or name.replace('_', '-')}"

    @property
    def field(self) -> str:
        """The operators' name for it, which is also the key in a run's conf."""
        if self.option.field is not None:
            return self.option.field
        return self.name.removesuffix("_seconds") if self.kind is Kind.DURATION else self.name

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts of which it takes one, or several; empty if it takes others."""
        kind = get_args(self.type)[0] if self.kind is Kind.CHOICES else self.type
        parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
        return tuple(c for part in parts if get_origin(part) is Literal for c in get_args(part))

    @property
    def shown_default(self) -> Any:
        """The default as one would write it on a command line; None where there is none."""
        if self.default is None or self.default in (False, ()):
            return None
        if self.kind is Kind.DURATION:
            return format_duration(self.default)
        return ",".join(self.default) if self.kind is Kind.CHOICES else self.default

    def check(self, value: Any, name: str, bounds: Bounds) -> Any:
        """Return the value in its normal form. Raises Usage, which calls it `name`.

        Several choices come in the order in which they are declared.
        """
        if value is None and self.is_optional:
            return None
        if self.kind is Kind.PAIRS:
            return _make_pairs(value, name)
        if self.kind not in (Kind.LIST, Kind.CHOICES):
            return self._check_one(value, name, bounds)
        items = [value] if isinstance(value, str) or not isinstance(value, Iterable) else value
        if isinstance(value, Mapping):  # a key
            items = [f"{key}={_write(part)}" for key, part in value.items()]
        found = tuple(self._check_one(item, name, bounds) for item in items)
        return found if self.kind is Kind.LIST else tuple(c for c in self.choices if c in found)

    def _check_one(self, value: Any, name: str, bounds: Bounds) -> Any:
        if self.choices and value not in self.choices:
            raise Usage(f"{name} {value!r}: expected {', '.join(self.choices)}")
        value = convert_value(self.kind, value, name)
        if isinstance(value, str) and self.option.parse is not None:
            return self.option.parse(value)
        least, most = bounds if isinstance(value, int | float) else (None, None)
        show = format_duration if self.kind is Kind.DURATION else "{:g}".format
        if least is not None and value < least:
            raise Usage(f"{name} {show(value)}: expected {show(least)} or more")
        if most is not None and value > most:
            raise Usage(f"{name} {show(value)}: expected {show(most)} or less")
        return value


_EXPECTED: Mapping[Kind, tuple[type, str]] = {
    Kind.SWITCH: (bool, "True or False"),
    Kind.EITHER: (bool, "True or False"),
    Kind.NUMBER: (Real, "a number"),
    Kind.DURATION: (Real, SECONDS_EXPECTED.removeprefix("expected ")),
    Kind.SIZE: (Real, BYTES_EXPECTED.removeprefix("expected ")),
    Kind.TEXT: (str, "a text"),
    Kind.LIST: (str, "a text, or several"),
}
_PARSERS: Mapping[Kind, Callable[[str], float]] = {
    Kind.NUMBER: lambda text: float(text) if "." in text else int(text),
    Kind.DURATION: parse_seconds,
    Kind.SIZE: parse_bytes,
}


def convert_value(kind: Kind, value: Any, name: str) -> Any:
    """The value, read if it is the text of a number. Raises Usage for one of another type."""
    needed, expected = _EXPECTED.get(kind, (object, "a value"))
    found = value
    if isinstance(value, str) and kind in _PARSERS:
        with suppress(ValueError):
            found = _PARSERS[kind](value)
    fits = isinstance(found, needed) and not (needed is Real and isinstance(found, bool))
    if found is None or not fits:
        raise Usage(f"{name} {value!r}: expected {expected}")
    return found


def _make_pairs(value: Any, name: str) -> tuple[tuple[str, str], ...]:
    try:
        pairs = value.items() if isinstance(value, Mapping) else value
        return tuple((str(key), _write(part)) for key, part in pairs)
    except (TypeError, ValueError):  # not shown: it may hold secrets
        raise Usage(f"{name}: expected names with values, such as {{'a': 'b'}}") from None


def _write(value: object) -> str:
    """A value as one types it on a command line."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def list_options(request: Any) -> tuple[DeclaredOption, ...]:
    """The options that a request declares, in order; its other fields are none."""
    hints = get_type_hints(request, include_extras=True)
    found = []
    for field in fields(request):
        hint = hints[field.name]
        if get_origin(hint) is not Annotated:
            continue
        option = next((m for m in hint.__metadata__ if isinstance(m, Option)), None)
        if option is None:
            continue
        kind, is_optional = _drop_none(get_args(hint)[0])
        made = field.default_factory
        found.append(
            DeclaredOption(
                name=field.name,
                type=kind,
                is_optional=is_optional,
                kind=_find_kind(field.name, kind, is_optional),
                default=made() if made is not MISSING else field.default,
                option=option,
            )
        )
    return tuple(found)


def convert_request(request: Any, kind: Callable[..., Request], **more: Any) -> Request:
    """A request of another kind that says the same, as far as that kind has a word for it."""
    own = {field.name for field in fields(request)}
    shared = {f.name: getattr(request, f.name) for f in fields(cast(Any, kind)) if f.name in own}
    return kind(**{**shared, **more})


def list_settings(request: Any) -> dict[str, Any]:
    """The keys of memwal.toml that a request overrides, with its values."""
    kind: Any = type(request)
    found = ((d, getattr(request, d.name)) for d in list_options(kind) if d.option.setting)
    # A switch that is off says nothing; a 0 does.
    said = ((d, v) for d, v in found if v is not None and (v or d.kind is not Kind.SWITCH))
    return {str(declared.option.setting): value for declared, value in said}


def _drop_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, False
    rest = [part for part in get_args(kind) if part is not type(None)]
    return Union[tuple(rest)], len(rest) < len(get_args(kind))  # noqa: UP007


def _find_kind(name: str, kind: Any, is_optional: bool) -> Kind:
    origin = get_origin(kind)
    if kind is bool:
        return Kind.EITHER if is_optional else Kind.SWITCH
    if origin is Literal or origin in (Union, types.UnionType):
        return Kind.CHOICE
    if origin is not None and issubclass(origin, Mapping):
        return Kind.PAIRS
    if origin is not None and issubclass(origin, Sequence):
        items = get_args(kind)[0]
        if get_origin(items) is Literal:
            return Kind.CHOICES
        return Kind.PAIRS if get_origin(items) is tuple else Kind.LIST
    if kind in (int, float):
        if "seconds" in name.split("_"):
            return Kind.DURATION
        return Kind.SIZE if "bytes" in name.split("_") else Kind.NUMBER
    return Kind.TEXT
