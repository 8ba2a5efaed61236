"""What has to be true, kept by watching the bucket, and the audit after every step."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

from memwal.format import codec, layout
from memwal.model import Checkpoint, ShardId, ShardManifest
from tests.simulation.lake import REPLACED, Lake, Version, decode_changes
from tests.simulation.manifest_names import ManifestNames
from tests.simulation.row_rules import NEWEST_WINS, WINDOWED, Changes, RowRules
from tests.simulation.scheduler import Violation
from tests.simulation.sim_ports import data_path

USER_KEYS = 10**6
"""Keys from here on are a user's own: only plain writes to the base touch them."""
State = dict[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainWrite:
    """A user's write to a row of a shard in the base: newer than what had been merged by then."""

    after_generation: int
    version: int
    key: int
    value: int | None


@dataclass(kw_only=True)
class Truth:
    """Entries by position as the WAL took them, who was told of them, and what was flushed."""

    rules: RowRules = NEWEST_WINS
    copied: Mapping[ShardId, State] = field(default_factory=dict)
    """Rows that a clone was made with."""
    wal: dict[ShardId, dict[int, Changes]] = field(default_factory=lambda: defaultdict(dict))
    acknowledged: dict[ShardId, set[int]] = field(default_factory=lambda: defaultdict(set))
    manifests: dict[ShardId, list[ShardManifest]] = field(default_factory=lambda: defaultdict(list))
    replay: dict[ShardId, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0]))
    """The last position that each generation covers; the first is before any."""
    covered: dict[tuple[ShardId, str], int] = field(default_factory=dict)
    """The same by path, as writers know it: a manifest may say less."""
    plain: dict[ShardId, list[PlainWrite]] = field(default_factory=lambda: defaultdict(list))
    forks: dict[str, str] = field(default_factory=dict)
    """Manifests that a drop put onto freed names and has not taken back, with its actor."""
    rescue_traces: set[str] = field(default_factory=set)
    """Files of shards that rescues wrote."""
    restores: list[tuple[int, int]] = field(default_factory=list)
    """Versions that are restores, the oldest first, and what each brought back."""
    users: State = field(default_factory=dict)
    """A user's own rows."""
    checkpoints: dict[str, tuple[Checkpoint, dict[ShardId, State]]] = field(default_factory=dict)
    """Those that were made, by key, with the rows that each shard had."""
    checkpointed: set[int] = field(default_factory=set)
    """Versions that a checkpoint was made of, ever."""
    cursors: dict[str, int] = field(default_factory=dict)
    """Where those stand that follow the changes."""

    def move_cursor(self, name: str, document: bytes | None, latest: int) -> None:
        """A cursor is stored or dropped. A new one counts if its version can't have expired."""
        if document is None:
            self.cursors.pop(name, None)
            return
        version = int(json.loads(document)["version"])
        if name in self.cursors or version == latest:
            self.cursors[name] = version

    def state(self, shard: ShardId, generation: int, version: int | None = None) -> State:
        """What the shard's rows are when generations up to this one were flushed.

        With what users wrote that `version` of the base has, by default the latest.
        """
        return _fold_upto(self, shard, self.replay[shard][generation], version)

    def at(self, shard: ShardId, position: int, version: int) -> State:
        """The same with all that the WAL had up to a position."""
        return _fold_upto(self, shard, position, version)

    def includes(self, version: int | None, commit: int) -> bool:
        """Whether a version, by default the latest, has what another committed."""
        for restore, restored in reversed(self.restores):
            if version is None or version >= restore:
                if commit >= restore:
                    break
                version = restored
        return version is None or commit <= version

    def restored(self, landed: Version, version: int) -> None:
        """Told of a restore: what was written to the base since is undone, and nothing else."""
        self.restores.append((landed.number, version))
        self.users = {k: v for k, (v, _) in landed.rows.items() if k >= USER_KEYS}

    def generation(self, shard: ShardId, generation: int) -> dict[int, int | None]:
        """What a flushed generation has to hold."""
        low, high = self.replay[shard][generation - 1 : generation + 1]
        changes: dict[int, int | None] = {}
        for position in range(low + 1, high + 1):
            self.rules.onto(changes, self.wal[shard].get(position, {}))
        return changes

    def flushed(self, shard: ShardId) -> int:
        """The newest flushed generation."""
        return len(self.replay[shard]) - 1

    def promise(self, made: Checkpoint, began: dict[ShardId, int], *, lagging: bool) -> None:
        """Told of a checkpoint: its cut is of a moment between then and now."""
        cut = {shard.shard_id: shard.generation for shard in made.shards}
        for shard, least in began.items():
            if not lagging and not least <= cut.get(shard, 0) <= self.flushed(shard):
                raise Violation(
                    f"5: checkpoint {made.key} has generations up to {cut.get(shard, 0)} of shard "
                    f"{shard[:4]}, which had {least} before"
                )
        states = {shard: self.state(shard, upto, made.version) for shard, upto in cut.items()}
        self.checkpoints[made.key] = made, states


def _fold_upto(truth: Truth, shard: ShardId, position: int, version: int | None = None) -> State:
    state: State = dict(truth.copied.get(shard, {}))
    plain = _plain_by_position(truth, shard, version)
    truth.rules.apply(state, plain.get(0, {}))
    for at in range(1, position + 1):
        truth.rules.apply(state, truth.wal[shard].get(at, {}))
        if at in plain:
            truth.rules.apply(state, plain[at])
    return state


def _plain_by_position(
    truth: Truth, shard: ShardId, version: int | None
) -> dict[int, dict[int, int | None]]:
    """Plain writes, by the position that they come after."""
    found: dict[int, dict[int, int | None]] = {}
    for write in truth.plain[shard]:
        if truth.includes(version, write.version):
            after = truth.replay[shard][write.after_generation]
            found.setdefault(after, {})[write.key] = write.value
    return found


def may_write(actor: str) -> bool:
    """Whether this actor is a shard's writer: others leave the shards' data alone."""
    return actor.split("-")[0] in ("writer", "rescue", "ingest")


@cache
def _decoded(data: bytes) -> dict[int, int | None]:
    return decode_changes(data)


@dataclass(kw_only=True)
class Auditor:
    """Checks every invariant against the bucket and the lake. `shard_of` is the keys' owner."""

    lake: Lake
    truth: Truth
    shards: list[ShardId]
    grace_seconds: float
    retention_seconds: float
    clocks_agree: Callable[[], bool]
    dropped_at: dict[tuple[ShardId, str], int] = field(default_factory=dict)
    audited: object = None
    found: Violation | None = None
    """What was broken in the middle of a step, whatever the actor made of it."""
    merged_highest: dict[ShardId, int] = field(default_factory=dict)
    refreshing: bool = False
    orphaned: bool = False
    """Whether the table was overwritten: of its shards only what is deleted matters any more."""
    checks: int = 0
    base_seen: int = 0
    """The version whose base rows were looked at last."""
    deletes_apart: bool = True
    """Whether a merger of the run may commit deletes before the rows beside them."""

    @cached_property
    def numbered(self) -> ManifestNames:
        """What may become of manifests."""
        return ManifestNames(bucket=self.lake.bucket, now_nanos=self.lake.now_nanos)

    def watch(self, actor: str, path: str, data: bytes) -> None:
        """Told of every object that was written, by whom."""
        parts = path.split("/")
        if parts[0] != layout.MEM_WAL:
            return
        if actor.startswith("rescue"):
            self.truth.rescue_traces.add(path)
        shard = ShardId(parts[1])
        if not layout.is_shard_folder(parts[1]):
            raise Violation(f"9: {actor} wrote {path}")
        if parts[2] == "manifest":
            version = layout.parse_shard_manifest_name(parts[-1])
            if version is not None and layout.decode_stopper(data) is not None:
                self.numbered.check_gone(shard, version, self._hold_seconds())
            elif version is not None:
                self._new_manifest(
                    actor, codec.decode_shard_manifest(data, shard_id=shard, version=version)
                )
        elif not may_write(actor):
            raise Violation(f"4: {actor} wrote {path}")

    def watch_entry(self, actor: str, shard: ShardId, position: int, changes: Changes) -> None:
        """Told of every WAL entry that was written. Covered positions are nobody's any more."""
        manifests = self.truth.manifests[shard]
        covered = manifests[-1].replay_after_wal_entry_position if manifests else 0
        if position > covered:
            self.truth.wal[shard][position] = changes
        elif changes:
            raise Violation(f"7: {actor} put rows at position {position}; {covered} are covered")

    def _new_manifest(self, actor: str, new: ShardManifest) -> None:
        known = self.truth.manifests[new.shard_id]
        old = known[-1] if known else None
        if old is not None and new.version <= old.version and not may_write(actor):
            path = layout.shard_manifest_path(new.shard_id, new.version)
            self.truth.forks[path] = actor
            return
        if old is not None and new.version != old.version + 1:
            raise Violation(f"3: manifest {new.version} after {old.version}")
        if may_write(actor):
            self._flushed(old, new)
        else:
            self._dropped(actor, old, new)
        known.append(new)
        self.numbered.note(new, may_write(actor), self.lake.now_nanos())

    def _hold_seconds(self) -> float:
        """How long what is replaced has to be out of use."""
        return self.grace_seconds if self.clocks_agree() else 0.0

    def _flushed(self, old: ShardManifest | None, new: ShardManifest) -> None:
        replay = self.truth.replay[new.shard_id]
        if old is not None and new.writer_epoch < old.writer_epoch:
            raise Violation(f"a fenced writer committed manifest {new.version}")
        if new.current_generation == len(replay) + 1:
            generation = new.flushed_generations[-1]
            replay.append(self.truth.covered[new.shard_id, generation.path])
            path = data_path(new.shard_id, generation)
            content = _decoded(self.lake.bucket.objects[path][0])
            wanted = self.truth.generation(new.shard_id, generation.generation)
            if content != wanted:
                raise Violation(f"generation {generation.generation} holds {content}, not {wanted}")

    def _dropped(self, actor: str, old: ShardManifest | None, new: ShardManifest) -> None:
        if old is None or not set(new.flushed_generations) <= set(old.flushed_generations):
            raise Violation(f"4: {actor} made or added to a manifest")
        for name in (
            "writer_epoch",
            "current_generation",
            "replay_after_wal_entry_position",
            "wal_entry_position_last_seen",
            "status",
        ):
            if getattr(old, name) != getattr(new, name):
                raise Violation(f"4: {actor} changed {name}")

        for generation in set(old.flushed_generations) - set(new.flushed_generations):
            self._proven(new.shard_id, generation.generation, "dropped")
            self.dropped_at[new.shard_id, generation.path] = self.lake.now_nanos()

    def _proven(self, shard: ShardId, number: int, what: str) -> None:
        """Invariant 6, at the moment in which it counts."""
        merged = (v.own(shard) for v in self._find_holding() if v.has_mem_wal)
        # No version knows the shard any more when all that did were overwritten and expired.
        lowest = min(merged, default=number)
        if lowest < number:
            raise Violation(f"6: generation {number} was {what}, a version has merged {lowest}")
        for name in self.lake.indexes:
            # Lance may erase an entry later on, when a commit empties all that the index covers.
            reached = self.lake.caught_up_highest.get((name, shard), 0)
            if reached < number:
                raise Violation(f"6: generation {number} was {what}, {name} is at {reached}")

    def _find_holding(self) -> list[Version]:
        """Retained versions that may be read with what is listed.

        An old one that a checkpoint was made of holds no more than that needs, then nothing.
        """
        found = (v for v in self.lake.versions.values() if not self._is_released(v))
        return [*found, *self.lake.branches.values()]

    def _is_released(self, version: Version) -> bool:
        old = self.lake.now_nanos() - round(self.retention_seconds * 1e9)
        is_old = version.at_nanos <= old or not self.clocks_agree()
        return is_old and version.number in self.truth.checkpointed and version != self.lake.latest

    def watch_delete(self, actor: str, path: str) -> None:
        """Told of every object before it is deleted."""
        parts = path.split("/")
        if parts[0] != layout.MEM_WAL:
            self._check_kept(actor, parts)
            return
        if self.truth.forks.get(path) == actor:
            del self.truth.forks[path]
            return
        shard = ShardId(parts[1])
        if not any(version.has_mem_wal for version in self.lake.retained):
            if not self._is_superseded(shard, parts):
                self._check_adopted(shard, path)
            return
        number = layout.parse_generation_folder(parts[2])
        if number is not None:
            self._proven(shard, number, "deleted")
            dropped = self.dropped_at.get((shard, parts[2]))
            listed = self.truth.manifests[shard][-1].flushed_generations
            if any(g.path == parts[2] for g in listed):
                raise Violation(f"6: {path} was deleted while it is listed")
            waited = math.inf if dropped is None else (self.lake.now_nanos() - dropped) / 1e9
            if waited < self.grace_seconds and self.clocks_agree():
                raise Violation(f"6: {path} was deleted {waited:g} s after it was dropped")
        elif parts[2] == "manifest":
            version = layout.parse_shard_manifest_name(parts[3]) or 0
            self.numbered.check_deleted(shard, version, self._hold_seconds())
        elif parts[2] == "wal":
            self._check_uncovered(shard, layout.parse_wal_entry_name(parts[3]) or 0)
        else:
            raise Violation(f"10: {actor} deleted {path}")

    def _check_kept(self, actor: str, parts: list[str]) -> None:
        """No tag of a user's is touched; a checkpoint goes when it has expired, or was dropped."""
        name = parts[-1].removesuffix(".json")
        if parts[:2] == ["_refs", "tags"] and not name.startswith(layout.checkpoint_tag("")):
            raise Violation(f"6: {actor} deleted tag {name}")
        key = name.removeprefix(layout.checkpoint_tag(""))
        if key in self.truth.checkpoints and self._is_promised(self.truth.checkpoints[key][0]):
            raise Violation(f"6: {actor} deleted {'/'.join(parts)}, which has not expired")

    def _is_promised(self, checkpoint: Checkpoint) -> bool:
        """Whether it has not expired, by clocks that agree within some seconds."""
        end = checkpoint.expires_at_nanos
        return self.clocks_agree() and (end is None or self.lake.now_nanos() < end - 6 * 10**9)

    def _is_superseded(self, shard: ShardId, parts: list[str]) -> bool:
        """Whether it is an old manifest, which may go whoever knows the shard: the last version
        that did may have been expired since that was planned.
        """
        version = layout.parse_shard_manifest_name(parts[3]) if parts[2] == "manifest" else None
        if version is None:
            return False
        try:
            self.numbered.check_deleted(shard, version, self._hold_seconds())
        except Violation:
            return False
        return True

    def _check_adopted(self, shard: ShardId, path: str) -> None:
        """A shard that no version knows goes when nobody is at work in it, manifests last."""
        objects, folder = self.lake.bucket.objects, f"{layout.shard_folder(shard)}/"
        left = {p: at for p, (_, at) in objects.items() if p.startswith(folder)}
        idle = (self.lake.now_nanos() - max(left.values(), default=0)) / 1e9
        if idle < self.grace_seconds and self.clocks_agree():
            raise Violation(f"6: {path} was deleted {idle:g} s after a writer was at work")
        manifests = f"{folder}manifest/"
        if path.startswith(manifests) and any(not p.startswith(manifests) for p in left):
            raise Violation(f"8: {path} was deleted before the rest of its shard")

    def _check_uncovered(self, shard: ShardId, position: int) -> None:
        """Invariant 7: a WAL entry goes after the whole of the generation that covered it."""
        number = next((g for g, p in enumerate(self.truth.replay[shard]) if p >= position), None)
        if number is None:
            raise Violation(f"7: position {position} was deleted, and no generation covers it")
        folder = layout.shard_folder(shard)
        names = (p.split("/")[2] for p in self.lake.bucket.objects if p.startswith(f"{folder}/"))
        if number in map(layout.parse_generation_folder, names):
            raise Violation(f"7: position {position} was deleted before generation {number}")

    def refreshed(self, since: int) -> None:
        """Invariant 3: told when a refresh that began at version `since` says that it is done.

        A user who restores a version of its own time may bring back what it had lowered.
        """
        brought_back = any(version > since for _, version in self.truth.restores)
        if brought_back or not self.lake.latest.has_mem_wal:
            return
        latest = self.lake.latest.merged
        for number, merged in self.lake.progress.items():
            counts = number >= since and self.truth.includes(None, number)
            for shard, generation in merged.items() if counts else ():
                if latest.get(shard, 0) < generation:
                    raise Violation(
                        f"3: a refresh left {shard[:4]} at {latest.get(shard, 0)}, "
                        f"version {number} had {generation}"
                    )

    def audit(self) -> None:
        """Everything that must hold at this instant."""
        if self.found is not None:
            raise self.found
        if self.orphaned:
            self._checkpoints()
            return
        objects = self.lake.bucket.objects
        mark = (self.lake.latest.number, len(self.lake.retained), len(objects),
                tuple(self.lake.tags.values()), len(self.truth.checkpoints),
                sum(len(m) for m in self.truth.manifests.values()),
                sum(len(a) for a in self.truth.acknowledged.values()))  # fmt: skip
        if mark == self.audited:
            return
        self.audited = mark
        self.checks += 1
        for shard in self.shards:
            if self.truth.manifests[shard]:
                if self.lake.latest.has_mem_wal:
                    self._reads(shard)
                self._retained(shard)
                self._durable(shard)
                self._time_travel(shard)
                if not self.truth.forks:
                    self.numbered.check_leads_up(shard)
        self._checkpoints()
        if self.lake.doubled:
            raise Violation(f"1: keys {sorted(self.lake.doubled)} are in the base twice")
        self._progress()
        self._base_alone()
        latest = self.lake.latest
        users = {k: v for k, (v, _) in latest.rows.items() if k >= USER_KEYS}
        if self._hide(users, latest) != self._hide(self.truth.users, latest):
            raise Violation(f"a user's rows: {_difference(users, self.truth.users)}")

    def _hide(self, rows: State, version: Version) -> State:
        """Those that had not expired, by the true clock, when the version was made: no others may
        be gone from it.
        """
        return self.truth.rules.hide(rows, version.at_nanos)

    def _own(self, shard: ShardId, key: int) -> bool:
        return key < USER_KEYS and self.shards[key % len(self.shards)] == shard

    def _reads(self, shard: ShardId) -> None:
        """Invariants 1, 2 and 5: the merging read of this instant is what was flushed."""
        version = self.lake.latest
        rows = self._merged_read(shard, version)
        wanted = self.truth.state(shard, self.truth.flushed(shard))
        if self._hide(rows, version) != self._hide(wanted, version):
            raise Violation(
                f"5: shard {shard[:4]} reads {_difference(rows, wanted)} "
                f"(merged {version.merged.get(shard, 0)})"
            )

    def _base_alone(self) -> None:
        """Invariant 1 for a reader of the base alone: each version is what it has merged.

        Except for deletes of later generations that may be ahead of their rows. Progress that a
        refresh lowered says too little for a moment, and for longer where a user restores it.
        """
        version = self.lake.latest
        unsure = self.refreshing or self.truth.restores or not version.has_mem_wal
        if version.number == self.base_seen or unsure:
            return
        self.base_seen = version.number
        for shard in self.shards:
            if not self.truth.manifests[shard]:
                continue
            merged = version.own(shard)
            rows: State = {k: v for k, (v, _) in version.rows.items() if self._own(shard, k)}
            wanted = self._hide(self.truth.state(shard, merged, version.number), version)
            ahead = wanted.keys() - rows.keys()
            if ahead:
                ahead &= self._may_be_ahead(shard, merged)
            if self._hide(rows, version) != {k: v for k, v in wanted.items() if k not in ahead}:
                raise Violation(
                    f"1: version {version.number} has merged {shard[:4]} up to {merged}, and its "
                    f"base {_difference(rows, wanted)}"
                )

    def _may_be_ahead(self, shard: ShardId, merged: int) -> set[int]:
        """Keys that a fold of what is not merged may delete, before its mark is set."""
        found: set[int] = set()
        if self.truth.rules in (NEWEST_WINS, WINDOWED) and self.deletes_apart:
            for number in range(merged + 1, self.truth.flushed(shard) + 1):
                changes = self.truth.generation(shard, number)
                found |= {key for key, value in changes.items() if value is None}
        return found

    def _merged_read(self, shard: ShardId, version: Version) -> State:
        merged = version.own(shard)
        rows: State = {k: v for k, (v, _) in version.rows.items() if self._own(shard, k)}
        for generation in self.truth.manifests[shard][-1].flushed_generations:
            if generation.generation > merged:
                self.truth.rules.apply(rows, self._content(shard, data_path(shard, generation)))
        return rows

    def _time_travel(self, shard: ShardId) -> None:
        """Invariants 5 and 6 at every tag: its version, and what it has not merged."""
        for name, number in self.lake.tags.items():
            if number not in self.lake.versions:
                raise Violation(f"6: version {number}, which is tag {name}, was expired")
            tagged = self.lake.version(number)
            if self._is_released(tagged) or not tagged.has_mem_wal:
                continue
            rows = self._merged_read(shard, tagged)
            wanted = self.truth.state(shard, self.truth.flushed(shard), number)
            if self._hide(rows, tagged) != self._hide(wanted, tagged):
                raise Violation(
                    f"5: shard {shard[:4]} at tag {name}, version {number}, reads "
                    f"{_difference(rows, wanted)}"
                )

    def _checkpoints(self) -> None:
        """Invariants 5 and 6 of every checkpoint: by its record, the rows of its moment."""
        for checkpoint, states in self.truth.checkpoints.values():
            if not self._is_promised(checkpoint):
                continue
            if checkpoint.version not in self.lake.versions:
                raise Violation(f"6: version {checkpoint.version} of {checkpoint.key} was expired")
            version = self.lake.version(checkpoint.version)
            for cut in checkpoint.shards:
                rows = {k: v for k, (v, _) in version.rows.items() if self._own(cut.shard_id, k)}
                for generation in cut.pending:
                    path = data_path(cut.shard_id, generation)
                    self.truth.rules.apply(rows, self._content(cut.shard_id, path))
                wanted = states[cut.shard_id]
                if self._hide(rows, version) != self._hide(wanted, version):
                    found = _difference(rows, wanted)
                    raise Violation(f"5: checkpoint {checkpoint.key} reads {found}")

    def _content(self, shard: ShardId, path: str) -> Changes:
        stored = self.lake.bucket.objects.get(path)
        if stored is None:
            raise Violation(f"6: {path} is listed and pending, and gone")
        return _decoded(stored[0])

    def _retained(self, shard: ShardId) -> None:
        """Invariant 6: what any retained version has not merged is listed and there."""
        merged = (v.own(shard) for v in self._find_holding() if v.has_mem_wal)
        lowest = min(merged, default=self.truth.flushed(shard))
        listed = {g.generation: g for g in self.truth.manifests[shard][-1].flushed_generations}
        for number in range(lowest + 1, self.truth.flushed(shard) + 1):
            if number not in listed:
                if self._was_dropped_before_fall(shard, number):
                    continue
                raise Violation(f"6: generation {number} is needed by a version, and not listed")
            self._content(shard, data_path(shard, listed[number]))

    def _was_dropped_before_fall(self, shard: ShardId, number: int) -> bool:
        """Whether every retained version had merged it until a refresh lowered progress again."""
        return number <= self.merged_highest.get(shard, 0) and self.refreshing

    def _durable(self, shard: ShardId) -> None:
        """Invariant 7: whatever was acknowledged is flushed, or the next writer will replay it."""
        replay = self.truth.manifests[shard][-1].replay_after_wal_entry_position
        tip = replay + 1
        while layout.wal_entry_path(shard, tip) in self.lake.bucket.objects:
            tip += 1
        for position in self.truth.acknowledged[shard]:
            if replay < position and position >= tip:
                raise Violation(f"7: position {position} was acknowledged and is not replayed")

    def _progress(self) -> None:
        """Invariant 3, save for the moments in which a refresh puts right what it overwrote."""
        merged = self.lake.progress[self.lake.latest.number]
        if self.lake.latest.kind in REPLACED:
            self.merged_highest = {}
        fell = [s for s, g in self.merged_highest.items() if merged.get(s, 0) < g]
        lowers = self.lake.latest.kind in ("mem_wal", "let go")
        if fell and not lowers and not self.refreshing:
            raise Violation(f"3: progress of {fell[0][:4]} fell to {merged.get(fell[0], 0)}")
        self.refreshing = bool(fell)
        for shard, generation in merged.items():
            self.merged_highest[shard] = max(self.merged_highest.get(shard, 0), generation)


def _difference(rows: State, wanted: State) -> str:
    keys = sorted(k for k in rows.keys() | wanted.keys() if rows.get(k) != wanted.get(k))[:5]
    return ", ".join(f"key {k}: {rows.get(k)} instead of {wanted.get(k)}" for k in keys)
