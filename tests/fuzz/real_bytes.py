"""Bytes as pylance writes them: one small table with everything that memwal parses."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from memwal.format import layout
from memwal.model import ShardId
from tests.support import builders
from tests.support.builders import Delete, Put

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")


@cache
def files() -> dict[str, bytes]:
    """Every file of the table, by its path."""
    with tempfile.TemporaryDirectory() as folder:
        table = builders.make_table(Path(folder) / "t", rows=range(5), shards=0)
        table.add_shard(SHARD)
        table.flush(SHARD, Put([1, 2], 10))
        table.merge_all()
        table.flush(SHARD, Put([5], 20), Delete([0]))
        table.dataset.create_scalar_index("k", "BTREE")
        table.dataset.tags.create("one", 1)
        root = Path(table.uri)
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }


def below(folder: str, extension: str) -> dict[str, bytes]:
    """Files directly in a folder, by name."""
    return {
        path.rpartition("/")[2]: data
        for path, data in sorted(files().items())
        if path.rpartition("/")[0] == folder and path.endswith(extension)
    }


def shard_manifests() -> list[bytes]:
    """Every manifest of the shard."""
    return list(below(layout.manifest_folder(SHARD), ".binpb").values())


def table_manifests() -> dict[int, bytes]:
    """Every version's manifest."""
    named = below(layout.VERSIONS, ".manifest")
    found = {layout.parse_table_manifest_name(name): data for name, data in named.items()}
    return {version: data for version, data in found.items() if version is not None}


def wal_entries() -> list[bytes]:
    """Entries with rows, and the sentinels of claims."""
    return list(below(layout.wal_folder(SHARD), ".arrow").values())
