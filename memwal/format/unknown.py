"""What a newer Lance stores that this build does not know: refused where it would be lost. Pure.

What memwal writes itself, it writes on top of the bytes that it read, so fields that it doesn't
know are kept. But pylance writes whole messages anew: a merge, an index's commit and a compaction
the details of the MemWAL index, a writer its shard's manifest. And a writer that replays a WAL
leaves out columns that the table has not.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from memwal.errors import Unsupported
from memwal.format import layout
from memwal.model import ShardManifest, TableView

_NEWER = "a newer Lance wrote them: maintain the table with a memwal that knows them"


def check_details(view: TableView) -> None:
    """Raise Unsupported where a commit of pylance's would drop fields of the MemWAL index."""
    names = ", ".join(view.mem_wal.unknown_fields)
    if names:
        raise Unsupported(
            "MW-M10",
            f"{view.uri}: the MemWAL index of version {view.version} has fields that are not known "
            f"here ({names}), which this commit would drop; {_NEWER}",
        )


def check_manifest(manifest: ShardManifest) -> None:
    """Raise Unsupported where a writer of pylance's would drop fields of its shard's manifest."""
    if manifest.unknown_fields:
        path = layout.shard_manifest_path(manifest.shard_id, manifest.version)
        raise Unsupported(
            "MW-M11",
            f"shard {manifest.shard_id}: {path} has fields that are not known here "
            f"({', '.join(manifest.unknown_fields)}), which a writer's next manifest would drop; "
            f"{_NEWER}",
        )


def find_reserved(names: Iterable[str]) -> tuple[str, ...]:
    """The columns of a WAL entry that may be Lance's own, apart from those that are known."""
    return tuple(name for name in names if layout.is_reserved(name) and name != layout.TOMBSTONE)


def check_entry(path: str, reserved: Iterable[str], columns: Container[str]) -> None:
    """Raise Unsupported where a replay would drop a column of a WAL entry.

    `reserved` are the entry's (`find_reserved`), `columns` the names that the table has.
    """
    for name in reserved:
        if name not in columns:
            raise Unsupported(
                "MW-W13",
                f"{path} has a column {name!r}, which the table does not have: a newer Lance may "
                "have added it for itself, and the writer that replays the entry here would drop "
                "it. Open the shard with that Lance, or use a memwal that knows it",
            )
