"""What the keys of memwal.toml have to say about requests, some of whose options override a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from memwal.config import Settings, make_settings
from memwal.options import Bounds, DeclaredOption, list_options, list_settings

Request = TypeVar("Request")


def check_request(request: Request, name: Callable[[DeclaredOption], str]) -> Request:
    """Return the request with its values in their normal forms. Raises Usage.

    name: what to call an option in an error.
    """
    kind: Any = type(request)
    checked = {
        declared.name: declared.check(
            getattr(request, declared.name), name(declared), find_bounds(declared)
        )
        for declared in list_options(kind)
    }
    make_settings(**list_settings(request))
    return replace(request, **checked)  # type: ignore[type-var]


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
