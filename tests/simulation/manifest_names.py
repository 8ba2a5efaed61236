"""What may become of a shard's manifests, by what was written when, apart from memwal's rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memwal.errors import StoreUnavailable
from memwal.format import codec, layout
from memwal.model import ShardId, ShardManifest
from memwal.testing import Call
from tests.simulation.scheduler import Violation


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A manifest as it was written: by a writer or by a drop, and when."""

    epoch: int
    own: bool
    at_nanos: int


@dataclass(kw_only=True)
class ManifestNames:
    """Remembers every manifest, and checks what is deleted or overwritten, and where hints lead."""

    bucket: Any
    now_nanos: Callable[[], int]
    written: dict[ShardId, dict[int, Written]] = field(default_factory=lambda: defaultdict(dict))

    def note(self, manifest: ShardManifest, own: bool, at_nanos: int) -> None:
        """A manifest was written."""
        found = Written(epoch=manifest.writer_epoch, own=own, at_nanos=at_nanos)
        self.written[manifest.shard_id][manifest.version] = found

    def check_gone(self, shard: ShardId, version: int, grace_seconds: float) -> None:
        """Nobody starts from a manifest that can't be read any more."""
        known = self.written[shard]
        if version + 1 not in known:
            raise Violation(f"10: manifest {version} is the latest, and gone")
        out_of_use = (self.now_nanos() - known[version + 1].at_nanos) / 1e9
        if out_of_use < grace_seconds:
            raise Violation(
                f"6: manifest {version} was the latest {out_of_use:g} s ago, and is gone"
            )
        if version >= self._last_own(shard, known[max(known)].epoch):
            raise Violation(
                f"10: the present writer goes on from manifest {version}, which is gone"
            )

    def check_deleted(self, shard: ShardId, version: int, grace_seconds: float) -> None:
        """A name that is free again is one that no writer tries for, however long it stalled."""
        self.check_gone(shard, version, grace_seconds)
        before = self.written[shard].get(version - 1)
        if before is None or version - 1 >= self._last_own(shard, before.epoch):
            raise Violation(f"10: a stalled writer may try for manifest {version}, which is gone")

    def check_leads_up(self, shard: ShardId) -> None:
        """Whoever follows the hint as pylance does finds the latest manifest, or none to read."""
        hint = self.bucket.objects.get(layout.version_hint_path(shard))
        start = 1 if hint is None else codec.decode_version_hint(hint[0]) or 1
        for first in {start, 1}:
            found = self._go_up(shard, first)
            latest = max(self.written[shard])
            if found is not None and found != latest:
                raise Violation(f"10: from {first} on, manifest {found} is taken for {latest}")

    def _go_up(self, shard: ShardId, version: int) -> int | None:
        """Where two requests at a time lead; None for nothing, or what is no manifest."""
        if self._stored(shard, version) is None:
            return None
        while True:
            above = [v for v in (version + 1, version + 2) if self._stored(shard, v) is not None]
            if not above:
                break
            version = max(above)
        data = self._stored(shard, version)
        return None if data is None or layout.decode_stopper(data) is not None else version

    def _stored(self, shard: ShardId, version: int) -> bytes | None:
        stored = self.bucket.objects.get(layout.shard_manifest_path(shard, version))
        return None if stored is None else stored[0]

    def _last_own(self, shard: ShardId, epoch: int) -> int:
        return max(v for v, w in self.written[shard].items() if w.own and w.epoch == epoch)


@dataclass(kw_only=True)
class ClaimLimits:
    """Gives claims up that took longer than the grace from their look at a manifest to their put.

    That long the grace protects a claim that is under way, and nothing else could.
    """

    grace_seconds: float
    now_seconds: Callable[[], float]
    seen: Counter[str]
    looks: dict[tuple[ShardId, int], tuple[float, bytes]] = field(default_factory=dict)

    def looked(self, path: str, data: bytes) -> None:
        """The actor read an object."""
        if (named := _parse(path)) is not None and layout.decode_stopper(data) is None:
            self.looks[named] = self.now_seconds(), data

    def check(self, call: Call) -> None:
        """Before a put-if-absent takes effect."""
        named = _parse(call.paths[0])
        if named is None or call.data is None or (named[0], named[1] - 1) not in self.looks:
            return
        shard, version = named
        began, data = self.looks[shard, version - 1]
        before = codec.decode_shard_manifest(data, shard_id=shard, version=version - 1)
        after = codec.decode_shard_manifest(call.data, shard_id=shard, version=version)
        if (
            after.writer_epoch > before.writer_epoch
            and self.now_seconds() - began >= self.grace_seconds
        ):
            self.seen["claims given up"] += 1
            raise StoreUnavailable("a claim took longer than the grace")


def _parse(path: str) -> tuple[ShardId, int] | None:
    match path.split("/"):
        case [layout.MEM_WAL, shard, "manifest", name]:
            version = layout.parse_shard_manifest_name(name)
            return None if version is None else (ShardId(shard), version)
    return None
