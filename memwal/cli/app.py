"""The command line with all of its commands."""

from __future__ import annotations

from memwal.cli.commands import make_app

app = make_app()
