"""The command line starts here: `memwal`, and the scripts of `jobs/`."""

from __future__ import annotations

import os
import sys

from memwal.cli import process
from memwal.identity import find_stranger, print_versions

# What Lance logs it also raises, save for an error about its own MemWAL index at every commit.
_IS_DEBUG = "--debug" in sys.argv or os.environ.get("MEMWAL_DEBUG")
os.environ.setdefault("LANCE_LOG", "warn" if _IS_DEBUG else "error,lance=off")

# Otherwise Pydantic searches every installed package for plugins.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def main(arguments: list[str] | None = None) -> None:
    """Run the `memwal` command; exits with 2 if another project's package has replaced ours."""
    if stranger := find_stranger():
        print(stranger, file=sys.stderr)
        raise SystemExit(2)
    arguments = _spell_out(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        problem = process.deliver(print_versions)
        raise SystemExit(problem and f"error: stdout: {problem}")
    process.pause_collecting()
    # Imported late: once the garbage collector is paused, and the package is known to be ours.
    from memwal.run.process import pandas_skip, process_memory

    pandas_skip.start()
    process_memory.limit_arenas()
    process.prepare()
    from memwal.run.process import logs

    if logs.find_format(arguments) == logs.JSON:
        logs.start()
    from memwal.cli.commands import make_app

    try:
        make_app(arguments)(arguments)
    except OSError as error:  # from --help and the like: commands report their own errors
        problem = process.give_up(error)
        raise SystemExit(problem and f"error: stdout: {problem}") from None
    finally:
        logs.stop()


def _spell_out(arguments: list[str]) -> list[str]:
    """Translate what people type before they know any command."""
    match arguments:
        case []:
            return ["--help"]
        case ["help", *command] if command != ["options"]:
            return [*command, "--help"]
        case ["version"]:
            return ["--version"]
    return arguments
