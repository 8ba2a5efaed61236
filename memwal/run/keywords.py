"""Rewords errors for Python programs: options of the command line become keyword arguments.

Errors are worded once, for the command line. Where one leaves the Python API, its text names the
argument instead of the option. Commands in backticks stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import ParamSpec, TypeVar

from memwal.errors import MemWalError, unexpected

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=type)

_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--([a-z][a-z-]*[a-z])")
# Arguments that are not just the option's words joined by underscores.
_OTHERS = {
    "no-lease": "lease=False",
    "with-pending": "merged_only=False",
    "merged-only": "merged_only=True",
    "delete-column": "deleted",
    "retention": "retention_seconds",
    "grace": "grace_seconds",
    "ingest-idle": "ingest_idle_seconds",
    "index": "indexes",
    "memory-max": "memory_bytes_max",
}
_SWITCHES = re.compile(r"allow-.*|missing-as-null|skip-unknown-columns|adopt-orphans|execute|wal")


def name_arguments(text: str) -> str:
    """The text with each option as a Python argument: `--allow-holes` is `allow_holes=True`."""

    def name(found: re.Match[str]) -> str:
        option = found[1]
        if option is None:
            return found[0]
        argument = _OTHERS.get(option, option.replace("-", "_"))
        return f"{argument}=True" if _SWITCHES.fullmatch(option) else argument

    return _OPTION.sub(name, text)


def raises_for_python(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap the function so that its errors name Python arguments instead of options."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except MemWalError as error:
            error.args = (*error.args[:-1], name_arguments(error.text))
            raise
        except ModuleNotFoundError as error:
            raise unexpected(error) from error

    return call


def made_for_python(kind: Kind) -> Kind:
    """Apply `raises_for_python` to the constructor and the public methods of the class."""
    for name, member in list(vars(kind).items()):
        if isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, raises_for_python(member))
    return kind
