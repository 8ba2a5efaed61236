"""What one may ask of a restore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from memwal.format.layout import parse_backup_name
from memwal.options import Option


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
    version: Annotated[
        int | None,
        Option(meaning="The newest backup that holds this version of the table.", least=1),
    ] = None
    backup_storage_options: Annotated[
        Sequence[tuple[str, str]],
        Option(
            meaning="Of BACKUP, over those of --storage-option.",
            flag="backup-storage-option",
            metavar="K=V",
        ),
    ] = ()
