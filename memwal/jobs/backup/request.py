"""What one may ask of a backup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from memwal.errors import Usage
from memwal.format.layout import parse_backup_name
from memwal.options import Option
from memwal.text import parse_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Which backups stay: the newest so many, or those that are not older; the newest always."""

    newest: int | None = None
    seconds: float | None = None


def parse_keep(text: str) -> str:
    """How many or how long, as a person types it. Raises Usage."""
    read_keep(text)
    return text


def read_keep(text: str) -> Keep:
    """What `--keep` says: `7` is a number, `7d` an age. Raises Usage."""
    if re.fullmatch("[1-9][0-9]{0,8}", text):
        return Keep(newest=int(text))
    try:
        seconds = parse_seconds(text) if text[-1:].isalpha() else 0.0
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise Usage(f"--keep {text!r}: expected how many, such as 7, or how long, such as 30d")
    return Keep(seconds=seconds)


DestOptions = Annotated[
    Sequence[tuple[str, str]],
    Option(
        meaning="Of DEST, over those of --storage-option.",
        flag="dest-storage-option",
        metavar="K=V",
    ),
]


@dataclass(frozen=True, kw_only=True)
class BackupRequest:
    """The name of a backup, whether it is read again, and which of those that are there stay."""

    name: Annotated[
        str | None,
        Option(
            meaning="Letters, digits, '-', '_', and dots between them. Default: the time.",
            parse=parse_backup_name,
        ),
    ] = None
    keep: Annotated[
        str | None,
        Option(
            meaning="Afterwards, drop backups beyond the newest N, or older than that; never the "
            "newest. Default: as configured for the table's own place; else none.",
            metavar="N|7d",
            parse=parse_keep,
        ),
    ] = None
    verify: Annotated[
        bool, Option(meaning="Read all that the backup needs again, and compare it.")
    ] = False
    dest_storage_options: DestOptions = ()


@dataclass(frozen=True, kw_only=True)
class PlaceRequest:
    """How to open a place of backups."""

    dest_storage_options: DestOptions = ()


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """Which backup of the place."""

    backup: Annotated[
        str | None,
        Option(
            meaning="The backup's name. Default: the newest.",
            metavar="NAME",
            parse=parse_backup_name,
            form="Backup",
        ),
    ] = None
    backup_storage_options: Annotated[
        Sequence[tuple[str, str]],
        Option(
            meaning="Of BACKUP, over those of --storage-option.",
            flag="backup-storage-option",
            metavar="K=V",
        ),
    ] = ()
