"""A table in memory that races as pylance 14 does, and whose manifests are real bytes.

Rows are numbers under integer keys, each in a fragment, so that index coverage can be followed.
What Lance does and does not notice between racing commits is as the field notes and the fault tests
on real tables have it: touched keys conflict, marks must rise, a replaced MemWAL entry conflicts
with nothing and overwrites progress, index commits credit the version that they read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid5

from memwal import layout
from memwal._generated import memwal_pb2 as pb
from memwal.errors import LostRace, Missing
from memwal.model import ShardId
from memwal.testing import MemoryBucket

NAMESPACE = UUID("8b7c3f0e-0000-4000-8000-000000000000")
KEY_FIELD = 0
Progress = Mapping[ShardId, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One version. `rows`: key to value and fragment; `touched`: keys that its commit changed."""

    number: int
    kind: str
    at_nanos: int
    rows: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    next_fragment: int = 0
    merged: Progress = field(default_factory=dict)
    catchup: Mapping[str, Progress] = field(default_factory=dict)
    covered: Mapping[str, frozenset[int]] = field(default_factory=dict)
    touched: frozenset[int] = frozenset()
    snapshot: bytes | None = None
    num_shards: int = 0
    index_uuid: str = str(uuid5(NAMESPACE, "mem_wal"))

    @property
    def fragments(self) -> Mapping[int, int]:
        """Fragment to its number of rows."""
        found: dict[int, int] = {}
        for _, fragment in self.rows.values():
            found[fragment] = found.get(fragment, 0) + 1
        return found

    def is_covered(self, name: str) -> bool:
        """Whether the index covers every fragment."""
        return self.fragments.keys() <= self.covered[name]


@dataclass(kw_only=True)
class Lake:
    """The table's versions, and the bucket that its files are in."""

    bucket: MemoryBucket
    now_nanos: Callable[[], int]
    indexes: tuple[str, ...] = ("id_idx",)
    versions: dict[int, Version] = field(default_factory=dict)
    latest: Version = field(init=False)
    progress: dict[int, Progress] = field(default_factory=dict)
    caught_up_highest: dict[tuple[str, ShardId], int] = field(default_factory=dict)
    """For the audit: what each version had, expired or not."""

    def __post_init__(self) -> None:
        self._store(
            Version(
                number=1,
                kind="create",
                at_nanos=self.now_nanos(),
                covered={name: frozenset() for name in self.indexes},
            )
        )

    def version(self, number: int) -> Version:
        """A retained version. Raises Missing."""
        if number not in self.versions:
            raise Missing(f"version {number} was expired")
        return self.versions[number]

    # ---- commits, each from the version that it was made from

    def merge(
        self, read: int, live: Mapping[int, int], gone: frozenset[int], marks: Progress
    ) -> Version:
        """Upserts and deletes in one commit, with marks (none: a delete pass)."""
        touched = frozenset(live) | gone
        for other in self._since(read):
            if other.touched & touched:
                raise LostRace("Too many concurrent writers. Attempted 0 retries.")
        latest = self.latest
        for shard, mark in marks.items():
            if mark <= latest.merged.get(shard, 0):
                raise LostRace(f"Stale SSTable compaction for shard {shard}")
        rows = {k: r for k, r in latest.rows.items() if k not in touched}
        rows |= {key: (value, latest.next_fragment) for key, value in live.items()}
        landed = replace(
            latest,
            kind="merge" if marks else "delete",
            rows=rows,
            next_fragment=latest.next_fragment + bool(live),
            merged={**latest.merged, **marks},
            touched=touched,
        )
        return self._store(self._forget_emptied(latest, landed))

    @staticmethod
    def _forget_emptied(before: Version, after: Version) -> Version:
        """A commit that empties all fragments of an index erases its catch-up entry."""
        emptied = {
            name
            for name, covered in before.covered.items()
            if covered & before.fragments.keys() and not covered & after.fragments.keys()
        }
        return replace(after, catchup={n: p for n, p in after.catchup.items() if n not in emptied})

    def index(self, read: int, name: str | None) -> Version:
        """Make an index cover the version that was read; credit every one that covers it all."""
        for other in self._since(read):
            if other.kind.startswith("index ") and other.kind == f"index {name}":
                raise LostRace("commit conflict on the index")
        seen, latest = self.version(read), self.latest
        covered = dict(latest.covered)
        if name is not None:
            covered[name] = covered[name] | frozenset(seen.fragments)
        credited = {
            n for n in self.indexes if seen.is_covered(n) or (n == name and name is not None)
        }
        catchup = {
            **latest.catchup,
            **{n: _highest(latest.catchup.get(n, {}), seen.merged) for n in credited},
        }
        return self._store(
            replace(
                latest,
                kind=f"index {name}",
                covered=covered,
                catchup=catchup,
                touched=frozenset(),
            )
        )

    def replace_entry(
        self, read: int, merged: Progress, data: bytes, num_shards: int, index_uuid: str
    ) -> Version:
        """Replace the MemWAL entry by what it was in `read`, with `merged` raised. No conflict."""
        for other in self._since(read):
            if other.kind == "mem_wal":
                raise LostRace("commit conflict on the index entry")
        seen = self.version(read)
        return self._store(
            replace(
                self.latest,
                kind="mem_wal",
                merged=_highest(seen.merged, merged),
                catchup=seen.catchup,
                snapshot=data,
                num_shards=num_shards,
                index_uuid=index_uuid,
                touched=frozenset(),
            )
        )

    def expire(self, older_than_seconds: float) -> int:
        """Remove old versions, never the latest."""
        cutoff = self.now_nanos() - older_than_seconds * 1e9
        old = [v for v in self.versions.values() if v.at_nanos < cutoff and v != self.latest]
        for version in old:
            del self.versions[version.number]
            del self.bucket.objects[_path(version.number)]
        return len(old)

    def _since(self, read: int) -> list[Version]:
        self.version(read)
        found = range(read + 1, self.latest.number + 1)
        if any(number not in self.versions for number in found):
            raise LostRace("a version in between was expired")
        return [self.versions[number] for number in found]

    def _store(self, landed: Version) -> Version:
        number = max(self.versions, default=0) + 1
        landed = replace(landed, number=number, at_nanos=self.now_nanos())
        self.versions[number] = self.latest = landed
        self.progress[number] = landed.merged
        for name, reached in landed.catchup.items():
            for shard, generation in reached.items():
                highest = self.caught_up_highest.get((name, shard), 0)
                self.caught_up_highest[name, shard] = max(highest, generation)
        self.bucket.objects[_path(number)] = (_encoded(landed), landed.at_nanos)
        return landed


def _highest(one: Progress, other: Progress) -> dict[ShardId, int]:
    return {s: max(one.get(s, 0), other.get(s, 0)) for s in one.keys() | other.keys()}


def _path(version: int) -> str:
    return f"{layout.VERSIONS}/{layout.table_manifest_names(version)[0]}"


def _encoded(version: Version) -> bytes:
    """The manifest file: index section, manifest, footer."""
    details = pb.MemWalIndexDetails(num_shards=version.num_shards)
    for shard, generation in sorted(version.merged.items()):
        details.merged_generations.add(shard_id=_uuid(shard), generation=generation)
    for name, progress in sorted(version.catchup.items()):
        entry = details.index_catchup.add(index_name=name)
        for shard, generation in sorted(progress.items()):
            entry.caught_up_generations.add(shard_id=_uuid(shard), generation=generation)
    mem_wal = pb.IndexMetadata(
        uuid=_uuid(version.index_uuid),
        name=layout.MEM_WAL_INDEX_NAME,
        created_at=version.at_nanos // 10**6,
    )
    mem_wal.index_details.type_url = "/lance.table.MemWalIndexDetails"
    mem_wal.index_details.value = details.SerializeToString()
    others = [
        pb.IndexMetadata(
            uuid=_uuid(str(uuid5(NAMESPACE, name))),
            name=name,
            fields=[KEY_FIELD],
            dataset_version=1,
        )
        for name in version.covered
    ]
    section = _framed(pb.IndexSection(indices=[mem_wal, *others]).SerializeToString())
    manifest = pb.Manifest(version=version.number, index_section=0)
    manifest.timestamp.seconds, manifest.timestamp.nanos = divmod(version.at_nanos, 10**9)
    block = _framed(manifest.SerializeToString())
    return section + block + struct.pack("<qHH", len(section), 0, 2) + b"LANC"


def _framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def _uuid(text: str) -> pb.UUID:
    return pb.UUID(uuid=UUID(text).bytes)


def encode_changes(changes: Mapping[int, int | None]) -> bytes:
    """A generation's data file: key to value, None for a delete."""
    return json.dumps(sorted(changes.items())).encode()


def decode_changes(data: bytes) -> dict[int, int | None]:
    """The other way."""
    return {int(key): value for key, value in json.loads(data)}
