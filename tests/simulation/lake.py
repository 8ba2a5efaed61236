"""A table in memory that races as pylance 14 does, and whose manifests are real bytes.

Rows are numbers under integer keys, each in a fragment, so that index coverage can be followed.
What Lance does and does not notice between racing commits is as the fault tests
on real tables have it: touched keys conflict, marks must rise, a replaced MemWAL entry conflicts
with nothing and overwrites progress, index commits credit the version that they read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import count
from urllib.parse import quote
from uuid import UUID, uuid5

from memwal.errors import LostRace, Missing
from memwal.format import layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.model import ShardId
from memwal.rows.keys import new_keys_are_compared
from memwal.testing import MemoryBucket

NAMESPACE = UUID("8b7c3f0e-0000-4000-8000-000000000000")
KEY_FIELD = 0
REPLACED = ("restore", "overwrite")
"""Commits that no other may land on that began before them."""
Progress = Mapping[ShardId, int]
_NUMBERS = count(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One version. `rows`: key to value and fragment; `touched`: keys that its commit changed.

    `changed` are the fragments that lost rows in it, `indexed` those that an index came to cover.
    """

    number: int
    kind: str
    at_nanos: int
    rows: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    next_fragment: int = 0
    merged: Progress = field(default_factory=dict)
    catchup: Mapping[str, Progress] = field(default_factory=dict)
    covered: Mapping[str, frozenset[int]] = field(default_factory=dict)
    touched: frozenset[int] = frozenset()
    changed: frozenset[int] = frozenset()
    indexed: frozenset[int] = frozenset()
    snapshot: bytes | None = None
    taken_at_millis: int = 0
    num_shards: int = 0
    index_uuid: str = str(uuid5(NAMESPACE, "mem_wal"))
    has_mem_wal: bool = True
    entry_at_nanos: int = 0
    """When the MemWAL index entry was made: each merge makes it anew."""
    restored: int | None = None
    """The version that a restore brought back."""
    inherited: Progress = field(default_factory=dict)
    """Progress that came with a clone and was not let go of: nothing of these shards is merged."""
    columns: int = 0
    """How often its columns were changed."""

    def own(self, shard: ShardId) -> int:
        """Up to which of its generations the shard is merged, whatever the MemWAL index says."""
        return 0 if self.inherited.get(shard, 0) else self.merged.get(shard, 0)

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
    uri: str = field(default_factory=lambda: f"sim://table-{next(_NUMBERS)}")
    """No other's: what a process remembers of a table is of one run."""
    indexes: tuple[str, ...] = ("id_idx",)
    key_type: str = "int64"
    inherited: Progress = field(default_factory=dict)
    copied: Mapping[int, int] = field(default_factory=dict)
    """Of a clone: the progress that was copied with the MemWAL index, and the rows."""
    file_numbers: Iterator[int] = field(default_factory=count)
    rewritten: set[str] = field(default_factory=set)
    """The files that compactions have committed."""
    doubled: set[int] = field(default_factory=set)
    """Keys that two commits inserted, of a type that Lance does not compare."""
    versions: dict[int, Version] = field(default_factory=dict)
    latest: Version = field(init=False)
    progress: dict[int, Progress] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)
    caught_up_highest: dict[tuple[str, ShardId], int] = field(default_factory=dict)
    catchups: dict[int, Mapping[str, Progress]] = field(default_factory=dict)
    """For the audit: what each version had, expired or not."""
    tags: dict[str, int] = field(default_factory=dict)
    branches: dict[str, Version] = field(default_factory=dict)
    """The version that a branch has, which is the one that it was made from."""
    referenced: dict[str, int] = field(default_factory=dict)
    """Branches that Lance knows of, and the version of main that each was made from."""

    def __post_init__(self) -> None:
        self._store(
            Version(
                number=1,
                kind="clone" if self.inherited else "create",
                at_nanos=self.now_nanos(),
                rows={key: (value, 0) for key, value in self.copied.items()},
                next_fragment=1,
                entry_at_nanos=self.now_nanos(),
                merged=self.inherited,
                inherited=self.inherited,
                catchup=dict.fromkeys(self.indexes, self.inherited) if self.inherited else {},
                covered={name: frozenset({0}) for name in self.indexes},
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
        seen = self.version(read)
        changed = frozenset(seen.rows[k][1] for k in touched if k in seen.rows)
        inserted = touched - seen.rows.keys()
        compared = touched if new_keys_are_compared((self.key_type,)) else touched - inserted
        for other in self._since(read):
            if (
                other.touched & compared
                or other.kind == "alter"
                or (live and other.kind in ("append", "update"))
                or (other.kind == "rewrite" and other.changed & changed)
            ):
                raise LostRace("Too many concurrent writers. Attempted 0 retries.")
        latest = self.latest
        for shard, mark in marks.items():
            if mark <= latest.merged.get(shard, 0):
                raise LostRace(f"Stale SSTable compaction for shard {shard}")
        self.doubled |= inserted & latest.rows.keys()
        return self._write("merge" if marks else "delete", live, gone, marks)

    def write(self, kind: str, live: Mapping[int, int], gone: frozenset[int]) -> Version:
        """A user's plain append, update or delete, which Lance tries again until it lands."""
        return self._write(kind, live, gone, {})

    def _write(
        self, kind: str, live: Mapping[int, int], gone: frozenset[int], marks: Progress
    ) -> Version:
        touched, latest = frozenset(live) | gone, self.latest
        rows = {k: r for k, r in latest.rows.items() if k not in touched}
        rows |= {key: (value, latest.next_fragment) for key, value in live.items()}
        landed = replace(
            latest,
            kind=kind,
            rows=rows,
            next_fragment=latest.next_fragment + bool(live),
            merged={**latest.merged, **marks},
            entry_at_nanos=self.now_nanos() if marks else latest.entry_at_nanos,
            touched=touched,
            changed=frozenset(latest.rows[k][1] for k in touched if k in latest.rows),
            indexed=frozenset(),
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
        indexed = frozenset[int]()
        if name is not None:
            indexed = frozenset(seen.fragments) - seen.covered[name]
            covered[name] = covered[name] | frozenset(seen.fragments)
        if any(other.kind == "rewrite" for other in self._since(read)):
            raise LostRace("Retryable commit conflict: preempted by concurrent Rewrite")
        credited = {n for n in self.indexes if seen.is_covered(n) or n == name}
        catchup = _credited(latest.catchup, credited, seen.merged)
        return self._store(
            replace(
                latest,
                kind=f"index {name}",
                covered=covered,
                catchup=catchup,
                touched=frozenset(),
                changed=frozenset(),
                indexed=indexed,
            )
        )

    def replace_entry(
        self,
        read: int,
        merged: Progress,
        data: bytes,
        num_shards: int,
        index_uuid: str,
        taken_at_millis: int,
    ) -> Version:
        """Replace the MemWAL entry by what it was in `read`, with `merged` raised. No conflict."""
        for other in self._since(read):
            if other.kind in ("mem_wal", "let go"):
                raise LostRace("commit conflict on the index entry")
        seen = self.version(read)
        raised = _highest(seen.merged, merged)
        covered = {name for name in self.indexes if seen.is_covered(name)}
        return self._store(
            replace(
                self.latest,
                kind="mem_wal",
                merged=raised,
                catchup=_credited(seen.catchup, covered, raised),
                snapshot=data,
                taken_at_millis=taken_at_millis,
                num_shards=num_shards,
                index_uuid=index_uuid,
                touched=frozenset(),
                changed=frozenset(),
                indexed=frozenset(),
            )
        )

    def let_go(self, read: int, shards: Iterable[ShardId], merged: Progress) -> Version:
        """Replace the MemWAL entry by what it was in `read`, without progress of these shards."""
        if any(other.kind in ("mem_wal", "let go") for other in self._since(read)):
            raise LostRace("commit conflict on the index entry")
        seen, left_out = self.version(read), frozenset(shards)

        def kept(progress: Progress) -> Progress:
            return {s: g for s, g in progress.items() if s not in left_out}

        return self._store(
            replace(
                self.latest, kind="let go", merged=_highest(kept(seen.merged), merged),
                inherited=kept(seen.inherited), index_uuid=str(uuid5(NAMESPACE, f"let go {read}")),
                catchup={name: kept(found) for name, found in seen.catchup.items()},
                touched=frozenset(), changed=frozenset(), indexed=frozenset(),
            )
        )  # fmt: skip

    def overwrite(self) -> Version:
        """Write the table anew, with the same rows: its MemWAL index is gone."""
        return self._store(
            replace(
                self.latest, kind="overwrite", merged={}, inherited={}, catchup={}, snapshot=None,
                taken_at_millis=0, has_mem_wal=False, touched=frozenset(self.latest.rows),
            )
        )  # fmt: skip

    def restore(self, version: int) -> Version:
        """Bring a retained version back, and its MemWAL index with it. Raises Missing."""
        fragment = self.latest.next_fragment
        there = self.version(version)
        return self._store(replace(there, kind="restore", restored=version, next_fragment=fragment))

    def reserve(self) -> Version:
        """Reserve fragment ids, as a compaction does in a version of its own before it commits."""
        nothing = frozenset[int]()
        return self._store(
            replace(self.latest, kind="reserve", touched=nothing, changed=nothing, indexed=nothing)
        )

    def alter(self, read: int, columns: int) -> Version:
        """Other columns: values are written anew for the rows of the version that was read."""
        for other in self._since(read):
            if other.kind in ("merge", "delete", "append", "update", "rewrite", "alter"):
                raise LostRace("Retryable commit conflict: this Merge was preempted")
        nothing = frozenset[int]()
        return self._store(
            replace(
                self.latest, kind="alter", rows=self.version(read).rows, columns=columns,
                touched=nothing, changed=nothing, indexed=nothing,
            )
        )  # fmt: skip

    def rewrite(self, read: int, groups: Sequence[frozenset[int]]) -> Version:
        """Put the fragments of each group, planned on `read`, together as one."""
        old = frozenset[int]().union(*groups)
        for other in self._since(read):
            if other.kind == "alter" or (other.changed | other.indexed) & old:
                raise LostRace("Retryable commit conflict: this Rewrite was preempted")
        latest = self.latest
        new = {f: latest.next_fragment + place for place, group in enumerate(groups) for f in group}
        rows = {k: (value, new.get(f, f)) for k, (value, f) in latest.rows.items()}
        covered = {
            name: (known - old) | {new[next(iter(g))] for g in groups if g <= known}
            for name, known in latest.covered.items()
        }
        # Every entry goes when fragments were rewritten that some index covers.
        erased = any(known & old for known in latest.covered.values())
        return self._store(
            replace(
                latest,
                kind="rewrite",
                rows=rows,
                next_fragment=latest.next_fragment + len(groups),
                covered=covered,
                catchup={} if erased else latest.catchup,
                touched=frozenset(),
                changed=old,
                indexed=frozenset(),
            )
        )

    # ---- tags and branches

    def indexed_to(self, version: int, shard: ShardId) -> int:
        """Up to which generation a version had merged, and every index had caught up."""
        entries = self.catchups[version]
        reached = [entries.get(name, {}).get(shard, 0) for name in self.indexes]
        return min([self.progress[version].get(shard, 0), *reached])

    @property
    def retained(self) -> list[Version]:
        """Every version that somebody may read: of main, and of branches."""
        return [*self.versions.values(), *self.branches.values()]

    def tag(self, name: str, version: int) -> None:
        """Name a version of main, which then is not expired. Raises Missing."""
        self.version(version)
        self.tags[name] = version
        self._refer("tags", name, {"branch": None, "version": version, "manifestSize": 1})

    def untag(self, name: str) -> None:
        """Remove a tag; nothing happens when it is gone."""
        self.tags.pop(name, None)
        self.bucket.objects.pop(f"_refs/tags/{name}.json", None)

    def branch(self, name: str, version: int) -> None:
        """The first half of making a branch: its version. Raises Missing."""
        self.branches[name] = self.version(version)
        path = f"{layout.versions_folder(name)}/{layout.table_manifest_names(version)[0]}"
        self.bucket.objects[path] = (_encoded(self.branches[name]), self.now_nanos())

    def flush_first(self, folder: str) -> None:
        """Commit the first version of a generation, which tells when it was flushed."""
        path = f"{folder}/{_path(1)}"
        at = self.now_nanos()
        self.bucket.objects[path] = (_encoded(Version(number=1, kind="create", at_nanos=at)), at)

    def refer(self, name: str) -> None:
        """The second half: from now on Lance keeps the version that it was made from."""
        version = self.branches[name].number
        self.referenced[name] = version
        self._refer("branches", name, {"parentBranch": None, "parentVersion": version})

    def unrefer(self, name: str) -> None:
        """The first half of deleting a branch."""
        self.referenced.pop(name, None)
        self.bucket.objects.pop(f"_refs/branches/{quote(name, safe='')}.json", None)

    def unbranch(self, name: str) -> None:
        """The second half: what is stored of it."""
        self.branches.pop(name, None)
        folder = f"{layout.BRANCHES}/{name}/"
        for path in [p for p in self.bucket.objects if p.startswith(folder)]:
            del self.bucket.objects[path]

    def _refer(self, kind: str, name: str, document: Mapping[str, object]) -> None:
        path = f"_refs/{kind}/{quote(name, safe='')}.json"
        self.bucket.objects[path] = (json.dumps(document).encode(), self.now_nanos())

    def aged(self, seconds: float) -> frozenset[int]:
        """Versions that are older."""
        cutoff = self.now_nanos() - round(seconds * 1e9)
        return frozenset(v.number for v in self.versions.values() if v.at_nanos < cutoff)

    def expire(self, numbers: Set[int]) -> list[Version]:
        """Remove versions, never the latest, a tagged one, or one that a branch starts from."""
        kept = {self.latest.number, *self.tags.values(), *self.referenced.values()}
        old = [v for v in self.versions.values() if v.number in numbers and v.number not in kept]
        for version in old:
            del self.versions[version.number]
            del self.bucket.objects[_path(version.number)]
        return old

    def _since(self, read: int) -> list[Version]:
        self.version(read)
        found = range(read + 1, self.latest.number + 1)
        if any(number not in self.versions for number in found):
            raise LostRace("a version in between was expired")
        if any(self.versions[number].kind in REPLACED for number in found):
            raise LostRace("Incompatible transaction: preempted by concurrent Restore or Overwrite")
        return [self.versions[number] for number in found]

    def _store(self, landed: Version) -> Version:
        number = max(self.versions, default=0) + 1
        landed = replace(landed, number=number, at_nanos=self.now_nanos())
        self.versions[number] = self.latest = landed
        self.progress[number] = {shard: landed.own(shard) for shard in landed.merged}
        self.catchups[number] = landed.catchup
        self.kinds.append(landed.kind)
        for name, reached in landed.catchup.items():
            for shard, generation in reached.items():
                if landed.inherited.get(shard, 0):
                    continue
                highest = self.caught_up_highest.get((name, shard), 0)
                self.caught_up_highest[name, shard] = max(highest, generation)
        self.bucket.objects[_path(number)] = (_encoded(landed), landed.at_nanos)
        return landed


def _highest(one: Progress, other: Progress) -> dict[ShardId, int]:
    return {s: max(one.get(s, 0), other.get(s, 0)) for s in one.keys() | other.keys()}


def _credited(
    entries: Mapping[str, Progress], names: Iterable[str], merged: Progress
) -> dict[str, Progress]:
    """Catch-up entries, with those of some indexes raised; an index gets none for no progress."""
    raised = {name: _highest(entries.get(name, {}), merged) for name in names}
    return {**entries, **{name: reached for name, reached in raised.items() if reached}}


def _path(version: int) -> str:
    return f"{layout.VERSIONS}/{layout.table_manifest_names(version)[0]}"


def _encoded(version: Version) -> bytes:
    """The manifest file: index section, manifest, footer."""
    details = pb.MemWalIndexDetails(
        num_shards=version.num_shards,
        snapshot_ts_millis=version.taken_at_millis,
        inline_snapshots=version.snapshot,
    )
    for shard, generation in sorted(version.merged.items()):
        details.merged_generations.add(shard_id=_uuid(shard), generation=generation)
    for name, progress in sorted(version.catchup.items()):
        entry = details.index_catchup.add(index_name=name)
        for shard, generation in sorted(progress.items()):
            entry.caught_up_generations.add(shard_id=_uuid(shard), generation=generation)
    mem_wal = pb.IndexMetadata(
        uuid=_uuid(version.index_uuid),
        name=layout.MEM_WAL_INDEX_NAME,
        created_at=version.entry_at_nanos // 10**6,
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
    found = [mem_wal, *others] if version.has_mem_wal else others
    section = _framed(pb.IndexSection(indices=found).SerializeToString())
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
