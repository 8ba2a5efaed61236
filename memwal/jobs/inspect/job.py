"""`memwal inspect`: reads one thing and returns it as a document."""

from __future__ import annotations

from memwal.config import ResolvedTable
from memwal.errors import Missing, Usage
from memwal.format.layout import find_shard
from memwal.jobs.inspect import report
from memwal.model import ShardManifest
from memwal.report import Section
from memwal.rows.policy import STORED_KEY, policy_document
from memwal.run.stores import Stores, check_lance_version, open_stores
from memwal.store.shards.listing import list_shards
from memwal.threads import side_by_side

WAL_ENTRIES_SHOWN_MAX = 1000
_READERS_MAX = 16


def run_inspect(
    what: str,
    table: ResolvedTable,
    *,
    shard: str | None = None,
    version: int | None = None,
    untested_lance_allowed: bool = False,
    shown_max: int = WAL_ENTRIES_SHOWN_MAX,
    of_key: str | None = None,
) -> Section:
    """The document for `inspect WHAT TABLE`; `of_key` is the only shard to show, if it is there.

    Raises Usage, NotATable, Corruption, Unsupported.
    """
    check_lance_version(untested_lance_allowed)
    stores = open_stores(table.find_uri(), table.storage_options)
    if what in ("index", "manifest"):
        if version is None:
            version = int(stores.views.table_version())
        try:
            manifest = stores.table_manifests.read(version)
        except Missing as missing:
            raise Usage(str(missing)) from None
        if what == "index":
            stored = stores.tables.base(version).config().get(STORED_KEY)
            return report.describe_index(manifest, policy_document(stored))
        return report.describe_manifest(manifest)
    latest = int(stores.views.table_version())
    merged = stores.views.mem_wal(latest).merged
    manifests = [(m, merged.get(m.shard_id, 0)) for m in _shards(stores, shard, version)]
    if what == "shard":
        shown = [
            report.describe_shard(*manifest)
            for manifest in manifests
            if of_key in (None, manifest[0].shard_id)
        ]
        return report.ShardsDocument(
            table=table.name, version=latest, shard_id=of_key, shards=shown
        )
    wals = [_wal(stores, *manifest, shown_max) for manifest in manifests]
    return report.WalDocument(table=table.name, version=latest, shards=wals)


def _shards(stores: Stores, shard: str | None, version: int | None) -> list[ShardManifest]:
    found = list_shards(stores.objects, folders_only=True).shards
    if shard is not None:
        found = [find_shard(shard, found, stores.uri)]
    if version is not None:
        if shard is None:
            raise Usage("--version of a shard manifest needs --shard")
        try:
            return [stores.shard_manifests.read(found[0], version)]
        except Missing as missing:
            raise Usage(str(missing)) from None
    manifests = side_by_side(stores.shard_manifests.latest, found, _READERS_MAX)
    return [m for m in manifests if m is not None]


def _wal(stores: Stores, manifest: ShardManifest, merged: int, shown_max: int) -> report.ShardWal:
    """Describe a shard's WAL: all entries that no generation covers, and the newest others."""
    listed = stores.wal.list_settled(manifest)
    above = [p for p in listed if p[0] > manifest.replay_after_wal_entry_position]
    covered = listed[: len(listed) - len(above)]
    shown = covered[max(0, len(covered) - max(0, shown_max - len(above))) :]
    return report.describe_wal(
        manifest,
        merged,
        stores.wal.describe(manifest.shard_id, [*shown, *above]),
        now_nanos=stores.clock.now_nanos(),
        shown_max=shown_max,
        left_out=len(covered) - len(shown),
    )
