"""The Python side of the options: keyword arguments, made of requests, and named in errors.

Errors are worded once, for the command line. Where one leaves the Python API, its text names the
argument instead of the option. Commands in backticks stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, getdoc, isfunction, signature
from typing import Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from memwal.config.requests import check_request, describe_option
from memwal.errors import MemWalError, unexpected
from memwal.options import DeclaredOption, Kind, list_options

Arguments = ParamSpec("Arguments")
Request = TypeVar("Request")
Result = TypeVar("Result")
Self = TypeVar("Self")
Class = TypeVar("Class", bound=type)

_OPTION = re.compile(r"`[^`]*`|(?<![\w-])--([a-z][a-z-]*[a-z])")
# Arguments that are not just the option's words joined by underscores; `takes` adds those of
# requests.
_NAMES = {
    "no-lease": "lease=False",
    "no-merged-only": "merged_only=False",
    "merged-only": "merged_only=True",
    "delete-column": "deleted",
    "memory-max": "memory_bytes_max",
}
_SWITCHES = re.compile(r"allow-.*|missing-as-null")


def name_arguments(text: str) -> str:
    """The text with each option as a Python argument: `--allow-holes` is `allow_holes=True`."""

    def name(found: re.Match[str]) -> str:
        option = found[1]
        if option is None:
            return found[0]
        if option in _NAMES:
            return _NAMES[option]
        argument = option.replace("-", "_")
        return f"{argument}=True" if _SWITCHES.fullmatch(option) else argument

    return _OPTION.sub(name, text)


def name_options(text: str) -> str:
    """The text with each option as Spark's data source has it: `--allow-holes` is `allow_holes`."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: f"option {found[1].replace('-', '_')}", text)


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


def made_for_python(kind: Class) -> Class:
    """Apply `raises_for_python` to the constructor and the public methods of the class."""
    for name, member in list(vars(kind).items()):
        if isfunction(member) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, raises_for_python(member))
    return kind


def takes(
    request: Callable[Arguments, Request],
) -> Callable[[Callable[[Self, Request], Result]], Callable[Concatenate[Self, Arguments], Result]]:
    """Give a method the fields of a request as its keywords.

    The method itself gets the request that they make, checked. Raises TypeError for an unknown
    keyword, and Usage for a value that no job would take.
    """
    this, hints = Parameter("self", Parameter.POSITIONAL_ONLY), get_type_hints(request)
    known = signature(request).parameters.values()
    # Types as a user reads them: what else is declared is in the docstring.
    fields = [field.replace(annotation=hints[field.name]) for field in known]
    whole = signature(request).replace(parameters=[this, *fields])
    # A writer has one shard: for both, the text's own word is clear.
    others = (declared for declared in list_options(request) if declared.flag != "--shard")
    _NAMES.update(map(_name_keyword, others))
    meanings = "".join(
        f"\n{d.name}: {name_arguments(describe_option(d))}" for d in list_options(request)
    )

    def decorate(
        method: Callable[[Self, Request], Result],
    ) -> Callable[Concatenate[Self, Arguments], Result]:
        @wraps(method)
        def call(self: Self, *args: Arguments.args, **keywords: Arguments.kwargs) -> Result:
            try:
                whole.bind(self, *args, **keywords)
            except TypeError as error:
                raise TypeError(f"{method.__qualname__}() {error}") from None
            made = request(*args, **keywords)
            return method(self, check_request(made, lambda declared: declared.name))

        call.__doc__ = f"{getdoc(method)}\n{meanings}"
        returned = method.__annotations__["return"]
        vars(call)["__signature__"] = whole.replace(return_annotation=returned)
        return cast(Callable[Concatenate[Self, Arguments], Result], call)

    return decorate


def _name_keyword(declared: DeclaredOption) -> tuple[str, str]:
    is_switch = declared.kind in (Kind.SWITCH, Kind.EITHER)
    return declared.flag.removeprefix("--"), f"{declared.name}=True" if is_switch else declared.name
