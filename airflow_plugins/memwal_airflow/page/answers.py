"""Reads what `memwal status --json` and `memwal runs --json` say; takes secrets out of texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from memwal.jobs.status.report import ShardStatusReport, StatusTableReport
from memwal.report import RunRecord

TEXT_CHARACTERS_MAX = 600
# The patterns take time by the square of what they look through.
_CLEANED_CHARACTERS_MAX = 8 * TEXT_CHARACTERS_MAX
SHARDS_KEPT_MAX = 5_000
NAMED_MAX = 20
WELL = ("done", "nothing_to_do")
_SECRET_CHARACTERS_MIN = 4
_SECRET_WORDS = ("secret", "token", "key", "password", "credential", "sas")
# As memwal.config.mask_address has it: a secret key may hold slashes, so a colon in the host's
# place makes all up to the last @ a secret. A query may be a signature.
_USER_INFO = re.compile(r"(?<=://)(?:[^/\s@]+|[^/\s:@]*:\S*)@")
_QUERY = re.compile(r"(://[^\s?]+\?)[^\s'\")]+")


# A run record that RunRecord has checked, as JSON has it.
Run = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """Sums over shards. `partly`: what some shard did not tell is not in them."""

    generations: int
    bytes: int | None
    rows: int | None
    partly: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """What a look says about all shards together; summed up once, since it is shown often.

    `broken` and `abandoned` have a sentence for each of the first shards that are so.
    """

    shards: int
    pending: Pending
    oldest_pending_at: datetime | None
    broken: tuple[str, ...]
    abandoned: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is known of one table. `status` and `runs` are the last good ones, whatever came later.

    `error` is what went wrong in the newest look, None when it went well. `unreadable`: memwal
    answered, and what it said is that the table can't be read.
    """

    name: str
    uri: str | None = None
    status: StatusTableReport | None = None
    status_at: datetime | None = None
    totals: Totals | None = None
    runs: tuple[Run, ...] = ()
    runs_unreadable: int = 0
    runs_error: str | None = None
    error: str | None = None
    error_at: datetime | None = None
    unreadable: bool = False
    looking: bool = False


class Unclear(Exception):
    """The answer is not the document that was asked for."""


def tables_of(stdout: bytes, job: str) -> dict[str, Mapping[str, Any]]:
    """The tables of a report, by name. Raises Unclear."""
    try:
        document = json.loads(stdout)
        tables = document["tables"]
        found = {table["table"]: table for table in tables}
        if document["job"] != job or not all(isinstance(name, str) for name in found):
            raise Unclear(f"the answer is not a {job} report")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unclear(f"the answer is not a {job} report") from None
    return found


def with_status(look: Look, table: Mapping[str, Any], now: datetime, secrets: Redactor) -> Look:
    """The look after a status answer."""
    try:
        status = StatusTableReport.model_validate(table)
    except ValidationError as error:
        return with_error(look, f"status not understood: {_first(error)}", now, secrets)
    if status.version is None:
        text = status.error or f"status {status.outcome}"
        return replace(with_error(look, text, now, secrets), unreadable=True)
    kept = status.shards[:SHARDS_KEPT_MAX]
    shards = tuple(shard.model_copy(update={"error": secrets.clean(shard.error)}) for shard in kept)
    return replace(
        look,
        status=status.model_copy(
            update={
                "shards": shards,
                "error": secrets.clean(status.error),
                "warnings": tuple(str(secrets.clean(text)) for text in status.warnings),
            }
        ),
        status_at=now,
        totals=_totals(status.shards, secrets),
        uri=secrets.clean(status.uri) or look.uri,
        error=None,
        error_at=None,
        unreadable=False,
    )


def is_broken(shard: ShardStatusReport) -> bool:
    """Whether memwal could not make sense of the shard."""
    return shard.outcome not in WELL


def moment(text: str | None) -> datetime | None:
    """An ISO time with a zone, or None."""
    try:
        time = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _totals(shards: Sequence[ShardStatusReport], secrets: Redactor) -> Totals:
    broken = [shard for shard in shards if is_broken(shard)]
    whole = [shard for shard in shards if not is_broken(shard)]
    sizes = [shard.pending_bytes for shard in whole]
    rows = [shard.pending_rows for shard in whole]
    times = [moment(shard.oldest_pending_flushed_at) for shard in whole]
    return Totals(
        shards=len(shards),
        pending=Pending(
            generations=sum(len(shard.pending_generations) for shard in whole),
            bytes=_sum(sizes),
            rows=_sum(rows),
            partly=bool(broken) or None in sizes or None in rows,
        ),
        oldest_pending_at=min((time for time in times if time is not None), default=None),
        broken=tuple(
            f"shard {shard.shard_id[:8]}: {secrets.clean(shard.error) or shard.outcome}"
            for shard in broken[:NAMED_MAX]
        ),
        abandoned=tuple(
            f"shard {shard.shard_id[:8]} looks abandoned: {shard.unflushed_wal_entries} WAL "
            "entries are in no generation, so no merge will see them"
            for shard in [one for one in whole if one.abandoned][:NAMED_MAX]
        ),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    """What is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def with_runs(look: Look, table: Mapping[str, Any], secrets: Redactor) -> Look:
    """The look after a runs answer. A record that can't be understood is counted, not shown."""
    runs = []
    unclear = 0
    found = table.get("runs")
    for record in found if isinstance(found, list) else []:
        try:
            run = RunRecord.model_validate(record)
        except ValidationError:
            unclear += 1
            continue
        runs.append({**run.model_dump(mode="json"), "error": secrets.clean(run.error)})
    told = table.get("unreadable")
    error = table.get("error")
    return replace(
        look,
        runs=tuple(runs) if found is not None else look.runs,
        runs_unreadable=unclear + (told if isinstance(told, int) else 0),
        runs_error=secrets.clean(str(error)) if error else None,
    )


def with_error(look: Look, text: str, now: datetime, secrets: Redactor) -> Look:
    """The look after one that failed: the last good data stay."""
    return replace(look, error=secrets.clean(text), error_at=now, unreadable=False)


def _first(error: ValidationError) -> str:
    problem = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"


class Redactor:
    """Takes known secrets, and credentials inside addresses, out of texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        worth = {secret for secret in secrets if len(secret) >= _SECRET_CHARACTERS_MIN}
        longest_first = sorted(worth, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if worth else None

    def clean(self, text: str | None) -> str | None:
        """The text, bounded, without secrets."""
        if text is None:
            return None
        text = text[:_CLEANED_CHARACTERS_MAX]
        if self._known is not None:
            text = self._known.sub("***", text)
        text = _QUERY.sub(r"\1***", _USER_INFO.sub("***@", text))
        if len(text) > TEXT_CHARACTERS_MAX:
            text = text[: TEXT_CHARACTERS_MAX - 1] + "…"
        return text


def secret_values(options: Mapping[str, str]) -> set[str]:
    """The values of those storage options whose names say that they are secret."""
    return {
        value
        for name, value in options.items()
        if any(word in name.lower() for word in _SECRET_WORDS)
    }
