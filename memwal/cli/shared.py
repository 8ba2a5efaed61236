"""A command's help shows its own options; `memwal help options` those that commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import typer
from typer.core import TyperCommand

from memwal.cli.flags import JobFlags

# Nobody should run a job without having met these two.
_SHOWN_EVERYWHERE = {"dry_run", "everything"}
SHARED = {field.name for field in fields(JobFlags)} - _SHOWN_EVERYWHERE
"""The parameters that `memwal help options` explains."""


class OwnHelp(TyperCommand):
    """Names the shared options in one line, instead of explaining them in each command's help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's own options, and that line."""
        own: list[Any] = self.params
        shared = [p for p in own if p.name in SHARED and not p.hidden]
        self.show(ctx, formatter, hidden=shared)
        if shared:
            flags = " ".join(p.opts[0] for p in shared)
            with formatter.section("Shared options (memwal help options)"):
                formatter.write_text(flags)

    def show(self, ctx: Any, formatter: Any, *, hidden: list[Any]) -> None:
        """Write all arguments and options but some."""
        for parameter in hidden:
            parameter.hidden = True
        try:
            super().format_options(ctx, formatter)
        finally:
            for parameter in hidden:
                parameter.hidden = False


class App(typer.Typer):
    """Commands of which each has such a help."""

    def command(self, name: str | None = None, **more: Any) -> Callable[..., Any]:
        """As typer's."""
        return super().command(name, **{**more, "cls": more.get("cls") or OwnHelp})
