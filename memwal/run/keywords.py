"""The Python side of the options: keyword arguments, made of requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, getdoc, signature
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from memwal.config.requests import check_request, describe_option
from memwal.errors import MemWalError
from memwal.options import list_options

Arguments = ParamSpec("Arguments")
Request = TypeVar("Request")
Result = TypeVar("Result")
Self = TypeVar("Self")
Class = TypeVar("Class", bound=type)
_FLAG = re.compile(r"`memwal [^`]*`|--(no-)?([a-z][a-z-]*)")


def name_options(text: str) -> str:
    """The text with each option as Spark's data source has it: `--allow-holes` is `allow_holes`."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: f"option {found[1].replace('-', '_')}", text)


def name_keywords(text: str, request: Any) -> str:
    """The text with each option as the keyword that it is in Python; a whole command stays."""
    names = {d.flag[2:]: d.name for d in list_options(request)} if request else {}

    def name(found: re.Match[str]) -> str:
        if found[2] is None:
            return found[0]
        keyword = names.get(found[2], found[2].replace("-", "_"))
        return f"{keyword}=False" if found[1] else keyword

    return _FLAG.sub(name, text)


def speaks_python(**requests: Any) -> Callable[[Class], Class]:
    """Let errors of a class's methods call options by their keywords.

    requests: by method, whose options it has for keywords, where `takes` does not say so.
    """

    def decorate(kind: Class) -> Class:
        for name, method in list(vars(kind).items()):
            if callable(method) and not name.startswith("_"):
                request = vars(method).get("request", requests.get(name))
                setattr(kind, name, _speak_python(method, request))
        return kind

    return decorate


def _speak_python(method: Callable[..., Any], request: Any) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return method(*args, **keywords)
        except MemWalError as error:
            *code, text = error.args or ("",)
            error.args = (*code, name_keywords(str(text), request))
            raise

    return call


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
        vars(call)["request"] = request
        return cast(Callable[Concatenate[Self, Arguments], Result], call)

    return decorate
