"""Looks at one table, reading only what has changed since the last look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memwal.jobs.status.plan import AbandonedLimits
from memwal.jobs.watch.model import Generation
from memwal.jobs.watch.store.base import LatestVersion
from memwal.jobs.watch.store.shards import LatestShards, SeenShard, SeenShards
from memwal.model import BrokenShard, ShardView, TableView, VersionFacts
from memwal.ports import Clock, Objects
from memwal.rows.holes import find_holes
from memwal.rows.policy import STORED_KEY
from memwal.store.tables.manifests import require_mem_wal

_LOOKS_MAX = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    facts: VersionFacts
    shards: SeenShards
    view: TableView
    flushed: Mapping[Generation, int]


class SeenTable:
    """Looks at one table, and remembers the last look. For one thread at a time."""

    def __init__(self, objects: Objects, clock: Clock, limits: AbandonedLimits) -> None:
        self._uri = objects.uri
        self._base = LatestVersion(objects)
        self._shards = LatestShards(objects, clock, limits)
        self._last: _Seen | None = None

    @property
    def abandoned(self) -> int | None:
        """How many shards look abandoned; None where no look could tell."""
        return self._shards.abandoned.count

    def look(self) -> tuple[TableView, Mapping[Generation, int], bool]:
        """The table's view, when its generations were flushed, and whether anything is new."""
        last, facts = self._last, self._base.read()
        for _ in range(_LOOKS_MAX):
            shards = self._shards.look()
            if last is not None and last.facts is facts and last.shards == shards:
                return last.view, last.flushed, False
            self._last = seen = self._show(facts, shards)
            if not any(any(find_holes(shard)) for shard in seen.view.shards):
                break
            # A generation that was merged and dropped between the two reads looks like a hole.
            newer = self._base.read()
            if newer is facts:
                break
            facts = newer
        return seen.view, seen.flushed, True

    def _show(self, facts: VersionFacts, seen: SeenShards) -> _Seen:
        mem_wal = require_mem_wal(self._uri, facts.manifest)
        shards = {k: s for k, s in seen.shards.items() if isinstance(s, SeenShard)}
        view = TableView(
            uri=self._uri,
            version=facts.manifest.version,
            primary_key=facts.primary_key,
            columns=(),
            rows=facts.rows,
            manifest=facts.manifest,
            mem_wal=mem_wal,
            shards=tuple(
                ShardView(manifest=s.manifest, merged_generation=mem_wal.merged.get(k, 0))
                for k, s in shards.items()
            ),
            broken=tuple(s for s in seen.shards.values() if isinstance(s, BrokenShard)),
            strangers=tuple(seen.strangers),
            policy_text=facts.manifest.config.get(STORED_KEY),
        )
        flushed = {
            (shard_id, listed.generation): shard.flushed[listed.path]
            for shard_id, shard in shards.items()
            for listed in shard.manifest.flushed_generations
        }
        return _Seen(facts=facts, shards=seen, view=view, flushed=flushed)
