"""`memwal wait`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from memwal.cli.flags import Job, ReadFlags, command
from memwal.cli.options import OneTable
from memwal.cli.parse import parse_duration
from memwal.errors import Usage
from memwal.format.layout import parse_shard

if TYPE_CHECKING:
    from memwal.jobs.wait.plan import Until

UntilName = Annotated[
    str, typer.Option("--until", metavar="merged|indexed|collected", help="What to wait for.")
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="10m", help="After this, exit with code 4.")
]
Generations = Annotated[
    list[str] | None,
    typer.Option(
        "--generation",
        metavar="SHARD=N",
        help="Wait only for these; repeatable. Default: all generations flushed now.",
    ),
]


@command()
def wait(
    table: OneTable,
    until: UntilName,
    timeout: Timeout = "10m",
    generation: Generations = None,
    *,
    flags: ReadFlags,
) -> Job:
    """Wait until flushed rows are merged, indexed or collected."""
    from memwal.jobs.wait.job import WaitOptions, run_wait

    return flags.job(
        run_wait,
        WaitOptions,
        table,
        until=_parse_until(until),
        timeout_seconds=parse_duration(timeout, "--timeout"),
        generations=_parse_generations(generation or []),
    )


def _parse_until(text: str) -> Until:
    from memwal.jobs.wait.plan import Until

    try:
        return Until(text)
    except ValueError:
        names = ", ".join(until.value for until in Until)
        raise Usage(f"--until {text!r}: expected one of {names}") from None


def _parse_generations(texts: list[str]) -> dict[str, int]:
    """Parse `SHARD=N` texts. Raises Usage for another form, and for a shard named twice."""
    found: dict[str, int] = {}
    for text in texts:
        shard, _, number = text.partition("=")
        if not re.fullmatch("[1-9][0-9]{0,18}", number):
            raise Usage(f"--generation {text!r}: expected SHARD=N with a generation from 1 on")
        shard_id = parse_shard(shard)
        if shard_id in found:
            raise Usage(f"--generation names shard {shard_id} twice")
        found[shard_id] = int(number)
    return found
