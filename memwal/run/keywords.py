"""The Python side of the options: keyword arguments, made of requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, getdoc, signature
from typing import Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from memwal.config.requests import check_request, describe_option
from memwal.options import list_options

Arguments = ParamSpec("Arguments")
Request = TypeVar("Request")
Result = TypeVar("Result")
Self = TypeVar("Self")
Class = TypeVar("Class", bound=type)


def name_options(text: str) -> str:
    """The text with each option as Spark's data source has it: `--allow-holes` is `allow_holes`."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: f"option {found[1].replace('-', '_')}", text)


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
    meanings = "".join(f"\n{d.name}: {describe_option(d)}" for d in list_options(request))

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
