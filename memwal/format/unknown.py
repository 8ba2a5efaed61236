"""What a newer Lance stores that this build does not know: refused where it would be lost. Pure.

What memwal writes itself, it writes on top of the bytes that it read, so fields that it doesn't
know are kept. But pylance writes whole messages anew: a merge, an index's commit and a compaction
the details of the MemWAL index, a writer its shard's manifest.
"""

from __future__ import annotations

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
            "MW-M10",
            f"shard {manifest.shard_id}: {path} has fields that are not known here "
            f"({', '.join(manifest.unknown_fields)}), which a writer's next manifest would drop; "
            f"{_NEWER}",
        )
