"""The command line with all its commands."""

from __future__ import annotations

from memwal.cli.commands import make_app

app = make_app()
