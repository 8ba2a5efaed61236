"""Asks the memwal command about tables: short, bounded, and without a JVM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memwal.errors import Usage
from memwal.text import one_line
from memwal_airflow.command import JobsEnvironment
from memwal_airflow.outcomes import each_text, hidden

ANSWER_BYTES_MAX = 256 * 1024 * 1024
ERROR_CHARACTERS_MAX = 1_000
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the command said, and how it ended."""

    document: Mapping[str, Any]
    exit_code: int


class NoAnswer(Exception):
    """The command gave no JSON document in time. Says what it did instead."""


async def look(
    jobs: JobsEnvironment,
    command: str,
    tables: Sequence[str],
    options: Sequence[str] = (),
    *,
    seconds_max: float,
) -> Answer:
    """Run `memwal COMMAND OPTIONS --json -- TABLES`; its document, whatever the exit code.

    Raises NoAnswer. The command's whole process group is gone when this returns or is cancelled.
    """
    try:
        argv = jobs.memwal(command, [*options, "--json"], tables)
    except Usage as error:
        raise NoAnswer(str(error)) from None
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=jobs.variables(),
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswer(f"{argv[0]}: {error}") from None
    try:
        out, err = await asyncio.wait_for(_read(process), seconds_max)
    except TimeoutError:
        raise NoAnswer(f"memwal {command}: no answer in {seconds_max:g} s") from None
    finally:
        _end(process)
    code = await process.wait()
    what = f"memwal {command} (exit code {code})"
    said = hidden(err.decode(errors="replace"), jobs.secrets)
    return Answer(document=_document(out, said, what), exit_code=code)


async def _read(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    if process.stdout is None or process.stderr is None:
        raise NoAnswer("the command has no output")
    return await asyncio.gather(_bounded(process.stdout), _bounded(process.stderr))


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(_PIECE_BYTES):
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise NoAnswer(f"the command said more than {ANSWER_BYTES_MAX} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _end(process: asyncio.subprocess.Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _document(out: bytes, err: str, what: str) -> Mapping[str, Any]:
    try:
        # Some of its texts were stored by somebody, and go to logs from here.
        found = each_text(json.loads(out), one_line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        said = one_line(err.strip()[-ERROR_CHARACTERS_MAX:])
        raise NoAnswer(f"{what} gave no document: {said or 'it said nothing'}")
    return found


def tables_in(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The document's tables."""
    found = document.get("tables")
    return [t for t in found if isinstance(t, Mapping)] if isinstance(found, list) else []
