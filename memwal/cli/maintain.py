"""`memwal maintain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from memwal.cli.flags import Job, command
from memwal.cli.garbage import DeletingFlags
from memwal.cli.options import Tables
from memwal.config import CompactionMode

Compaction = Annotated[
    str | None,
    typer.Option(
        "--compaction",
        metavar="[auto]",
        help="Also rewrite small fragments; with auto, where advised. Default: as "
        "configured, else not (--no-compaction).",
    ),
]


class MaintainCommand(TyperCommand):
    """Lets `--compaction` stand alone: the next word is its value only if it is a valid one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments, with a value for each `--compaction`."""
        return super().parse_args(ctx, list(spell_out(args)))


COMMAND_CLASS = MaintainCommand


def spell_out(words: Sequence[str]) -> Iterator[str]:
    """Turn `--compaction TABLE` into `--compaction=always TABLE`, except after `--`."""
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words):
        bare = place < end and word == "--compaction"
        if bare and not (place + 1 < end and words[place + 1] in get_args(CompactionMode)):
            yield "--compaction=always"
        else:
            yield "--compaction=never" if place < end and word == "--no-compaction" else word


@command(DeletingFlags)
def maintain(
    tables: Tables,
    *,
    compaction: Compaction = None,
    flags: DeletingFlags,
) -> Job:
    """Merge, index-catchup, snapshot and garbage, in this order.

    Garbage is only listed without --execute.
    """
    from memwal.jobs.maintain.job import MaintainOptions, choose_mode, run_maintain

    options = flags.garbage_options()
    mode = choose_mode(compaction)
    return flags.job(run_maintain, MaintainOptions, tables, compaction=mode, **options)
