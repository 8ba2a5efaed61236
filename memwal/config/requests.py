"""What the keys of memwal.toml have to say about requests, some of whose options override a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from memwal.config import Settings, make_settings
from memwal.options import Bounds, DeclaredOption, list_options

Request = TypeVar("Request")


def check_request(request: Request, name: Callable[[DeclaredOption], str]) -> Request:
    """Return the request with its values in their normal forms. Raises Usage.

    name: what to call an option in an error.
    """
    kind: Any = type(request)
    checked = {
        declared.name: _check(declared, getattr(request, declared.name), name(declared))
        for declared in list_options(kind)
    }
    return replace(request, **checked)  # type: ignore[type-var]


def check_values(request: Any, **values: Any) -> dict[str, Any]:
    """Return values of some of a request's options in their normal forms. Raises Usage."""
    known = {declared.name: declared for declared in list_options(request)}
    return {name: _check(known[name], value, name) for name, value in values.items()}


def _check(declared: DeclaredOption, value: Any, name: str) -> Any:
    """A setting's value may be a text, too, as in the file: `"256MB"`, `"no"`."""
    checked, key = declared.check(value, name, find_bounds(declared)), declared.option.setting
    if key is None or checked is None:
        return checked
    return getattr(make_settings(**{key: checked}), key)


def describe_option(declared: DeclaredOption) -> str:
    """Say what an option does: its own meaning, or that of the key that it overrides."""
    option = declared.option
    if option.meaning or option.setting is None:
        return option.meaning
    return f"{Settings.model_fields[option.setting].description}. Default: as configured."


def find_bounds(declared: DeclaredOption) -> Bounds:
    """Return the least and the most that a number may be; None: no bound."""
    option = declared.option
    if option.setting is None:
        return option.least, option.most
    known = Settings.model_fields[option.setting].metadata
    least = next((m.ge for m in known if hasattr(m, "ge")), None)
    return least, next((m.le for m in known if hasattr(m, "le")), None)
