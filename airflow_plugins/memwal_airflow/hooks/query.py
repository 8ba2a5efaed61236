"""Asks the memwal command about tables: briefly, within bounds, and without a JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memwal.errors import Usage
from memwal.text import one_line
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.hooks.redaction import change_texts, hide_secrets
from memwal_airflow.processes.process import Runner, read_messages, run_apart

ANSWER_BYTES_MAX = 256 * 1024 * 1024
ERROR_CHARACTERS_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the command printed, and how it ended."""

    document: Mapping[str, Any]
    exit_code: int | None

    @property
    def tables(self) -> list[Mapping[str, Any]]:
        """The document's tables."""
        found = self.document.get("tables")
        return [t for t in found if isinstance(t, Mapping)] if isinstance(found, list) else []


class NoAnswer(Exception):
    """The command gave no JSON document, and the text says why."""


def ask(
    runner: Runner,
    jobs: JobsEnvironment,
    command: str,
    tables: Sequence[str],
    options: Sequence[str] = (),
    *,
    seconds_max: float,
) -> Answer:
    """Run `memwal COMMAND OPTIONS --json -- TABLES` and return its document.

    The exit code does not matter; without a document, NoAnswer is raised. The command's whole
    process group is gone when this returns.
    """
    try:
        argv = jobs.memwal(command, [*options, "--json"], tables)
    except Usage as error:
        raise NoAnswer(str(error)) from None
    output = runner.run(argv, jobs.look_variables(), seconds_max, ANSWER_BYTES_MAX)
    if output.why is not None:
        raise NoAnswer(f"memwal {command}: {output.why}")
    what = f"memwal {command} (exit code {output.exit_code})"
    stderr = hide_secrets(output.stderr.decode(errors="replace"), jobs.secrets)
    return Answer(document=_read_document(output.stdout, stderr, what), exit_code=output.exit_code)


async def query(
    jobs: JobsEnvironment,
    command: str,
    tables: Sequence[str],
    options: Sequence[str] = (),
    *,
    seconds_max: float,
) -> Answer:
    """As `ask`, in a thread of its own; the command is gone, too, when this is cancelled."""
    return await run_apart(
        lambda runner: ask(runner, jobs, command, tables, options, seconds_max=seconds_max)
    )


def _read_document(out: bytes, err: str, what: str) -> Mapping[str, Any]:
    try:
        # Some of these texts were stored by others, and will go to logs.
        found = change_texts(json.loads(out), one_line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        said = one_line("\n".join(read_messages(err))[-ERROR_CHARACTERS_MAX:])
        raise NoAnswer(f"{what} gave no document: {said or 'it said nothing'}")
    return found
