"""Judges what is left of erased rows: what holds a key, why, and until when. Pure.

An object's keys are read, or something shows that it can hold none. Of an index over other columns
neither can be done: it is judged by when it was built. An erasure rewrites the fragments, builds
all indexes anew, and notes the version after that, the clean one. Whatever that version or a later
one names was made of rows without the keys, or of rows that were written again since. An object
that can't be read counts as one that holds them (fail closed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from memwal.errors import Refused
from memwal.model import Erasure, ShardId, ShardView
from memwal.text import name_some

_NAMED_MAX = 5
_WAITS = "grace"  # is in garbage's reasons for what goes when the grace is over
LEFTOVER_SECONDS = 7 * 86_400.0
"""After this long Lance's cleanup deletes a file that no version names."""


class Kind(StrEnum):
    """What an object below a table is."""

    DATA = "data"
    DELETION = "deletion"
    INDEX = "index"
    VERSION = "version"
    TRANSACTION = "transaction"
    REFERENCE = "reference"
    GENERATION = "generation"
    WAL_ENTRY = "wal_entry"
    SHARD_MANIFEST = "shard_manifest"
    RUN_RECORD = "run_record"
    INGEST = "ingest"
    TORN = "torn"
    MAINTENANCE = "maintenance"
    ERASURE = "erasure"
    BRANCH = "branch"
    OTHER = "other"


class State(StrEnum):
    """What is known of an object."""

    ABSENT = "absent"
    HELD = "held"
    AGAIN = "written_again"
    UNKNOWN = "unknown"
    OUTSIDE = "not_looked_at"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """One object, as it was looked at.

    `rows` counts the rows, texts or values with one of the keys; None where that can't be told.
    `how` says how it was looked at. `newest` and `oldest` are the retained versions that name it,
    0 if none does; `pins` are the tags and branches that keep one that does. `group` is the
    generation's folder or the index's, of which the object is a part. Of a WAL entry `generation`
    and `writer_epoch` are what it says itself.
    """

    path: str
    kind: Kind
    rows: int | None
    how: str
    size_bytes: int = 0
    modified_at_nanos: int = 0
    newest: int = 0
    oldest: int = 0
    pins: tuple[str, ...] = ()
    group: str | None = None
    shard_id: ShardId | None = None
    number: int = 0
    generation: int | None = None
    writer_epoch: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """A tag or a checkpoint that keeps rows: its version, and its generations, if any.

    `tag` is the name of the tag; that of a checkpoint ends in the checkpoint's key.
    """

    name: str
    version: int
    tag: str
    checkpoint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What the objects are judged by.

    `versions` has when each retained version of main was committed. `index_names` maps the folders
    of the latest version's indexes to their names. `kept` has garbage's reasons, by path.
    """

    now_nanos: int
    versions: Mapping[int, int]
    index_names: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    retention_seconds: float | None = None
    grace_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One object of a proof: its state, why, and until when it stays at the least, if known."""

    path: str
    kind: Kind
    state: State
    why: str
    size_bytes: int = 0
    until_nanos: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Holders:
    """How much holds the keys. `rows` counts stored rows in the base, the hidden ones included."""

    rows: int = 0
    data_files: int = 0
    fragments: int = 0
    versions: int = 0
    indexes: int = 0
    generations: int = 0
    wal_entries: int = 0
    others: int = 0
    tags: int = 0
    checkpoints: int = 0

    @property
    def any(self) -> bool:
        """Whether anything holds a key for sure; an index over other columns is not counted."""
        return any((self.rows, self.generations, self.wal_entries, self.others))


def judge(
    sightings: Iterable[Sighting], around: Surroundings, erasure: Erasure
) -> Iterable[Finding]:
    """Each object's finding, in the order of the sightings. No `until` has passed already.

    A WAL entry stays at the least until the generation that covers it is deleted.
    """
    sightings, covers = list(sightings), dict[tuple[ShardId | None, int | None], int | None]()
    for seen in sightings:
        if seen.kind is Kind.GENERATION:
            covers[seen.shard_id, seen.number] = _judge(seen, around, erasure)[2]
    for seen in sightings:
        state, why, until = _judge(seen, around, erasure)
        cover = seen.shard_id, seen.generation
        if state is State.HELD and seen.kind is Kind.WAL_ENTRY and cover in covers:
            why = f"{why.partition(';')[0]}; kept: its generation {seen.generation} is there"
            until = covers[cover]
        yield Finding(
            path=seen.path,
            kind=seen.kind,
            state=state,
            why=why,
            size_bytes=seen.size_bytes,
            until_nanos=None if until is None or until <= around.now_nanos else until,
        )


def _judge(seen: Sighting, around: Surroundings, erasure: Erasure) -> tuple[State, str, int | None]:
    if seen.kind is Kind.BRANCH:
        return State.OUTSIDE, "a branch: erase there, or drop it", None
    if seen.kind is Kind.ERASURE and seen.rows:
        return State.HELD, "the keys of an open erasure, until nothing else holds them", None
    if seen.rows == 0:
        return State.ABSENT, seen.how, None
    if seen.kind is Kind.INDEX:
        return _judge_index(seen, around, erasure)
    if seen.rows is None:
        return State.UNKNOWN, seen.how, None
    what = f"{seen.how}: {seen.rows} with an erased key"
    if _is_again(seen, erasure):
        return State.AGAIN, f"{what}, written since the erasure", None
    why, until = _explain_stay(seen, around)
    return State.HELD, f"{what}; {why}", until


def judge_copy(sightings: Iterable[Sighting]) -> Iterable[Finding]:
    """The same of another table that may have copies of the rows: it has an erasure of its own."""
    for seen in sightings:
        state, why = State.ABSENT, seen.how
        if seen.rows:
            state, why = State.HELD, f"{seen.how}: {seen.rows} with an erased key; erase there"
        elif seen.rows is None:
            outside = seen.kind in (Kind.INDEX, Kind.BRANCH)
            state = State.OUTSIDE if outside else State.UNKNOWN
        yield Finding(
            path=seen.path, kind=seen.kind, state=state, why=why, size_bytes=seen.size_bytes
        )


def _judge_index(
    seen: Sighting, around: Surroundings, erasure: Erasure
) -> tuple[State, str, int | None]:
    """An index by when it was built: Lance keeps values of deleted rows in some kinds."""
    name = around.index_names.get(seen.group or "")
    clean = erasure.clean_version
    if name is not None and name in erasure.not_rebuilt:
        return State.HELD, f"index {name!r}: {erasure.not_rebuilt[name]}", None
    if clean is not None and seen.newest >= clean:
        if seen.rows:
            return State.AGAIN, f"{seen.how}: {seen.rows}, written since the erasure", None
        return State.ABSENT, f"built of the rows of version {clean} or later", None
    may = f"{seen.how}: {seen.rows} with an erased key" if seen.rows else "may hold their values"
    why, until = _explain_stay(seen, around)
    return State.HELD, f"{may}; {why}", until


def _is_again(seen: Sighting, erasure: Erasure) -> bool:
    """Whether what has the key was written after the tombstones."""
    clean = erasure.clean_version
    if seen.kind is Kind.DATA:
        return clean is not None and seen.oldest >= clean
    if clean is None and not erasure.marks:
        return False
    mark = erasure.marks.get(seen.shard_id) if seen.shard_id is not None else None
    if seen.kind is Kind.WAL_ENTRY:
        return mark is None or seen.number > mark.position
    if seen.kind is Kind.GENERATION:
        return mark is None or seen.number > mark.generation
    return False


def _explain_stay(seen: Sighting, around: Surroundings) -> tuple[str, int | None]:
    """Why an object is still there, and until when at the least."""
    kept = _find_kept(seen.path, around.kept)
    if seen.kind in (Kind.GENERATION, Kind.WAL_ENTRY):
        until = _find_expiry(max(around.versions, default=0), around, older=True)
        if _WAITS in (kept or ""):
            until = max(until or 0, around.now_nanos + round(around.grace_seconds * 1e9))
        return f"kept: {kept or 'garbage has not collected it yet'}", until
    if seen.kind not in (Kind.DATA, Kind.INDEX, Kind.VERSION, Kind.TRANSACTION):
        return f"kept: {kept}" if kept else "nothing deletes it by itself", None
    if seen.pins:
        return f"kept by {', '.join(name_some(seen.pins, _NAMED_MAX, 'others'))}", None
    if not seen.newest:
        until = seen.modified_at_nanos + round(LEFTOVER_SECONDS * 1e9)
        return "no version names it: Lance's cleanup deletes it once it is a week old", until
    if seen.newest >= max(around.versions, default=0):
        return f"version {seen.newest}, the latest, names it", None
    if around.retention_seconds is None:
        return f"version {seen.newest} names it, and no retention expires it", None
    until = _find_expiry(seen.newest, around)
    if until is not None and until <= around.now_nanos:
        return f"version {seen.newest} names it, and stays although it is older (warnings)", None
    return f"version {seen.newest} names it", until


def _find_kept(path: str, kept: Mapping[str, str]) -> str | None:
    """Garbage's reason for the object, or for the folder that it is in."""
    parts = path.split("/")
    folders = ("/".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((kept[folder] for folder in folders if folder in kept), None)


def _find_expiry(version: int, around: Surroundings, *, older: bool = False) -> int | None:
    """When a version, or the newest one before it, expires, and then the grace is over."""
    numbers = [v for v in around.versions if v < version] if older else [version]
    known = max(numbers, default=None)
    if known is None or around.retention_seconds is None or known not in around.versions:
        return None
    wait = around.retention_seconds + (around.grace_seconds if older else 0.0)
    return around.versions[known] + round(wait * 1e9)


def count_holders(
    sightings: Sequence[Sighting],
    *,
    fragments: int,
    versions: int,
    indexes: int,
    pins: Sequence[Pin],
    rows_outside: int = 0,
) -> Holders:
    """Count what holds the keys, for a dry run and the record.

    `rows_outside` are rows of the table in files of another one, of which it is a clone or branch.
    """
    held = [s for s in sightings if s.rows]
    data = [s for s in held if s.kind is Kind.DATA]
    others = (Kind.DATA, Kind.INDEX, Kind.GENERATION, Kind.WAL_ENTRY, Kind.ERASURE)
    return Holders(
        rows=sum(s.rows or 0 for s in data) + rows_outside,
        data_files=len(data),
        fragments=fragments,
        versions=versions,
        indexes=indexes,
        generations=len({s.group for s in held if s.kind is Kind.GENERATION}),
        wal_entries=sum(s.kind is Kind.WAL_ENTRY for s in held),
        others=sum(s.kind not in others for s in held),
        tags=sum(not pin.checkpoint for pin in pins),
        checkpoints=sum(pin.checkpoint for pin in pins),
    )


def check_pins(uri: str, pins: Sequence[Pin], *, through_tags: bool) -> None:
    """Raise Refused where tags or checkpoints keep the rows, and may not be deleted."""
    if not pins or through_tags:
        return
    names = [f"{'checkpoint' if p.checkpoint else 'tag'} {p.name!r}" for p in pins]
    raise Refused(
        "MW-Z01",
        f"{uri}: {', '.join(name_some(names, _NAMED_MAX, 'others'))} would keep the rows: drop "
        "what nobody needs, or pass --through-tags, which deletes them; nothing was erased",
    )


def find_until(findings: Iterable[Finding]) -> int | None:
    """When all that is held can be gone, if that is known of everything."""
    latest = 0
    for found in findings:
        if found.state in (State.HELD, State.UNKNOWN) and found.kind is not Kind.ERASURE:
            if found.until_nanos is None:
                return None
            latest = max(latest, found.until_nanos)
    return latest or None


def is_over(findings: Iterable[Finding]) -> bool:
    """Whether nothing but the erasure's own list still holds a key, or may."""
    return all(
        f.state not in (State.HELD, State.UNKNOWN) or f.kind is Kind.ERASURE for f in findings
    )


def find_stuck(findings: Iterable[Finding]) -> list[Finding]:
    """What keeps an erasure open for an unknown time: no later run is sure to end it."""
    waiting = (f for f in findings if not is_over([f]))
    return [f for f in waiting if f.until_nanos is None]


def describe_stuck(uri: str, stuck: Sequence[Finding]) -> str:
    """What is in the way, on one line: each reason with the first object that it keeps."""
    reasons: dict[str, list[str]] = {}
    for found in stuck:
        reasons.setdefault(found.why.partition("; ")[2] or found.why, []).append(found.path)
    named = [
        f"{why} ({paths[0]}{f' and {len(paths) - 1} more' if paths[1:] else ''})"
        for why, paths in reasons.items()
    ]
    return (
        f"{uri}: no later run is sure to end the erasure: "
        f"{'; '.join(name_some(named, _NAMED_MAX, 'reasons'))}"
    )


def find_spent(
    sightings: Sequence[Sighting], shards: Iterable[ShardView], erasure: Erasure
) -> list[Sighting]:
    """WAL entries with an erased key of which nothing but the position is needed any more.

    The generation that covered their rows is merged and deleted, which garbage does only when no
    version, index or reader needs it. What is left may be the highest position, or lead a claim to
    a newer sentinel (`memwal/jobs/garbage/kinds/wal_entry.py`): a sentinel there does as well.
    """
    views = {shard.shard_id: shard for shard in shards}
    there = {(s.shard_id, s.number) for s in sightings if s.kind is Kind.GENERATION}
    found = []
    for seen in sightings:
        shard, generation = views.get(seen.shard_id or ShardId("")), seen.generation
        if seen.kind is not Kind.WAL_ENTRY or not seen.rows or _is_again(seen, erasure):
            continue
        if shard is None or generation is None or seen.writer_epoch is None:
            continue
        listed = {g.generation for g in shard.manifest.flushed_generations}
        if (
            seen.number <= shard.manifest.replay_after_wal_entry_position
            and 1 <= generation <= shard.merged_generation
            and generation not in listed
            and (seen.shard_id, generation) not in there
        ):
            found.append(seen)
    return found
