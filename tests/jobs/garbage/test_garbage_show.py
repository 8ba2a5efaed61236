"""What people see of hundreds of candidates."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from memwal.format import layout
from memwal.jobs.garbage.model import Action, Item
from memwal.jobs.garbage.report import GarbageTableReport, show_table
from memwal.model import ShardId

SHARD = ShardId("0b1e3c62-5f0e-4d0a-9c57-6a7d8e9f0a1b")


def test_many_manifests_are_told_by_their_versions_and_summed_up() -> None:
    paths = [layout.shard_manifest_path(SHARD, version) for version in range(1, 251)]
    items = [
        Item(
            kind="shard_manifest",
            shard_id=SHARD,
            path=path,
            bytes=1024,
            action=Action.DELETE,
            reason="nothing starts from a version as old as this",
        )
        for path in paths
    ]
    shown = StringIO()
    console = Console(file=shown, width=200)
    for part in show_table(GarbageTableReport(table="t", outcome="done", items=tuple(items))):
        console.print(part)
    first = shown.getvalue().splitlines()[1].split(maxsplit=4)
    assert first[:2] == ["delete", "shard_manifest"]
    assert f"{SHARD}/manifest: version 1 " in first[4]
    assert items[0].reason in first[4]
    assert "and 50 more" in shown.getvalue()
    assert "listed to go: 250 shard_manifest (250.0 KiB)" in shown.getvalue()
