"""The kinds of objects below a table, and what is known of each object. Pure.

`ObjectKind` is the one table of them: where they lie, how erased keys are looked for in them, and
what takes them away. Each object in the table's folder is of one kind; what the table does not know
may hold anything. An object's keys are read, or something shows that it can hold none. Of an index
over other columns neither can be done: it is judged by when it was built. An erasure rewrites the
fragments, builds all indexes anew, and notes the version after that, the clean one. Whatever that
version or a later one names was made of rows without the keys, or of rows that were written again
since. An object that can't be read counts as one that holds them (fail closed).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from memwal.errors import Refused
from memwal.format import layout
from memwal.jobs.garbage.plan import Permission
from memwal.model import Erasure, ShardId, ShardView
from memwal.text import iso_time, name_some

_NAMED_MAX = 5
_WAITS = "grace"  # is in garbage's reasons for what goes when the grace is over
_LEFTOVER_SECONDS = 7 * 86_400.0
"""After this long Lance's cleanup deletes a file that no version names."""
_STAGED_SECONDS = 86_400.0
"""After this long garbage deletes a file that was yet to be put in its place."""
_SHARD = f"{layout.MEM_WAL}/[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}"
_NUMBER = "(0|[1-9][0-9]{0,19})"
# Documents of memwal's whose every field is its own: they have no room for a row's value.
_OWN = r"(lease|checkpoints|cursors|settled|adopted|rescue|backups)/.+|snapshot\.json|reserve"


class By(StrEnum):
    """How keys are looked for in an object, as the proof says it."""

    ROWS = "its keys were read"
    FILE = "its rows or its texts were read"
    TEXTS = "its texts were read"
    ERRORS = "the texts in it were read"
    BUILD = "an index"
    SHARD = "has numbers, and the values by which rows go to the shard"
    NUMBERS = "has numbers of rows only"
    OWN = "a document of memwal's own, without rows' values"
    NOTHING = "not known here: look at it, and move it away"
    STAGED = "not looked at: it had yet to be put in its place"
    ELSEWHERE = "a branch: erase there, or drop it"


class Ends(StrEnum):
    """What takes an object away; the text is why it stays, where nothing does."""

    EXPIRY = "the version that names it expires"
    GARBAGE = "garbage has not collected it yet"
    DAY = "garbage collects it once it is a day old"
    NOTHING = "nothing deletes it by itself"


class ObjectKind(Enum):
    """What an object below a table is: the first kind whose paths it has."""

    DATA = "data/.+", By.ROWS, Ends.EXPIRY
    DELETION = "_deletions/.+", By.NUMBERS
    INDEX = "_indices/.+", By.BUILD, Ends.EXPIRY
    VERSION = "_versions/[^/]+", By.TEXTS, Ends.EXPIRY
    TRANSACTION = "_transactions/[^/]+", By.TEXTS, Ends.EXPIRY
    REFERENCE = "_refs/.+", By.TEXTS
    BRANCH = "tree/.+", By.ELSEWHERE
    SHARD_MANIFEST = f"{_SHARD}/manifest/[^/]+", By.SHARD
    WAL_ENTRY = rf"{_SHARD}/wal/[01]{{64}}\.arrow", By.ROWS, Ends.GARBAGE
    GENERATION = rf"{_SHARD}/[0-9a-f]{{8}}_gen_{_NUMBER}/.+", By.ROWS, Ends.GARBAGE
    STAGED = rf"{layout.STAGING}/.+|{_SHARD}/wal/{layout.STAGED_NAME}", By.STAGED, Ends.DAY
    RUN_RECORD = f"{layout.RUNS}/.+", By.ERRORS
    ERASED_KEYS = rf"{layout.ERASURES}/[^/]+/keys\.arrow", By.FILE
    ERASURE = f"{layout.ERASURES}/.+", By.OWN
    RECORD = f"{layout.MAINTENANCE}/({_OWN})", By.OWN
    INGEST = f"{layout.INGESTS}/.+", By.FILE
    MAINTENANCE = f"{layout.MAINTENANCE}/.+", By.FILE
    OTHER = ".+", By.NOTHING

    def __init__(self, paths: str, by: By, ends: Ends = Ends.NOTHING) -> None:
        self.paths = re.compile(paths)
        self.by = by
        self.ends = ends


def find_kind(path: str) -> ObjectKind:
    """The kind of an object."""
    return next((kind for kind in ObjectKind if kind.paths.fullmatch(path)), ObjectKind.OTHER)


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
    kind: ObjectKind
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
class SearchResult:
    """What a search found.

    `versions` has when each retained version of main was committed, and `index_names` the names of
    the latest version's indexes by their folders. `fragments` are those of the latest version in
    whose files a key is, hidden or not. `rows_outside` counts by folder the rows with a key that
    retained versions of a clone or branch have in files of another table. `elsewhere` names what
    may hold the keys and is not below the table.
    """

    version: int
    sightings: tuple[Sighting, ...]
    versions: Mapping[int, int]
    index_names: Mapping[str, str] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()
    fragments: tuple[int, ...] = ()
    rows_outside: Mapping[str, int] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Stored rows of the table with a key, hidden ones included."""
        own = sum(s.rows or 0 for s in self.sightings if s.kind is ObjectKind.DATA)
        return own + sum(self.rows_outside.values())

    @property
    def any(self) -> bool:
        """Whether there is something to erase: a key, or an index that only a new build clears."""
        kinds = (ObjectKind.INDEX, ObjectKind.ERASED_KEYS)
        return bool(self.rows) or any(
            s.kind not in kinds if s.rows else s.rows is None and s.group in self.index_names
            for s in self.sightings
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One object of the proof.

    `kind` says what it is, `state` absent, held, written_again, unknown or not_looked_at. `until`
    is the earliest time at which a further run can take it away, where that is known.
    """

    path: str
    kind: str
    state: State
    why: str
    bytes: int = 0
    until: str | None = None

    @property
    def is_left(self) -> bool:
        """Whether it holds a key, or may, and is no erasure's own list that was read."""
        is_list = self.kind == ObjectKind.ERASED_KEYS.name.lower()
        return self.state is State.UNKNOWN or (self.state is State.HELD and not is_list)


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What the objects of a look are judged by. `kept` has garbage's reasons, by path."""

    look: SearchResult
    erasure: Erasure
    permission: Permission
    kept: Mapping[str, str]
    now_nanos: int

    def list_findings(self) -> list[Finding]:
        """Each object's finding, in the order of the sightings. No `until` has passed already.

        A WAL entry stays at the least until the generation that covers it is deleted.
        """
        covers = {
            (seen.shard_id, seen.number): self._judge(seen)[2]
            for seen in self.look.sightings
            if seen.kind is ObjectKind.GENERATION
        }
        found = []
        for seen in self.look.sightings:
            state, why, until = self._judge(seen)
            cover = seen.shard_id, seen.generation or 0
            if state is State.HELD and seen.kind is ObjectKind.WAL_ENTRY and cover in covers:
                why = f"{why.partition(';')[0]}; kept: its generation {seen.generation} is there"
                until = covers[cover]
            found.append(
                Finding(
                    path=seen.path,
                    kind=seen.kind.name.lower(),
                    state=state,
                    why=why,
                    bytes=seen.size_bytes,
                    until=None if until is None or until <= self.now_nanos else iso_time(until),
                )
            )
        return found

    def _judge(self, seen: Sighting) -> tuple[State, str, int | None]:
        if seen.kind.by is By.ELSEWHERE:
            return State.OUTSIDE, seen.how, None
        if seen.kind is ObjectKind.ERASED_KEYS and seen.rows:
            return State.HELD, "the keys of an open erasure, until nothing else holds them", None
        if seen.rows == 0:
            return State.ABSENT, seen.how, None
        if seen.kind is ObjectKind.INDEX:
            return self._judge_index(seen)
        if seen.kind.by is By.STAGED:
            return State.UNKNOWN, *self._explain(seen.how, seen)
        if seen.rows is None:
            return State.UNKNOWN, seen.how, None
        what = f"{seen.how}: {seen.rows} with an erased key"
        if is_again(seen, self.erasure):
            return State.AGAIN, f"{what}, written since the erasure", None
        return State.HELD, *self._explain(what, seen)

    def _judge_index(self, seen: Sighting) -> tuple[State, str, int | None]:
        """An index by when it was built: Lance keeps values of deleted rows in some kinds."""
        name, clean = self.look.index_names.get(seen.group or ""), self.erasure.clean_version
        if name is not None and name in self.erasure.not_rebuilt:
            return State.HELD, f"index {name!r}: {self.erasure.not_rebuilt[name]}", None
        if clean is not None and seen.newest >= clean:
            if seen.rows:
                return State.AGAIN, f"{seen.how}: {seen.rows}, written since the erasure", None
            return State.ABSENT, f"built of the rows of version {clean} or later", None
        read = f"{seen.how}: {seen.rows} with an erased key"
        return State.HELD, *self._explain(read if seen.rows else "may hold their values", seen)

    def _explain(self, what: str, seen: Sighting) -> tuple[str, int | None]:
        """Why an object is still there, and until when at the least."""
        why, until = self._explain_stay(seen)
        return f"{what}; {why}", until

    def _explain_stay(self, seen: Sighting) -> tuple[str, int | None]:
        kept, latest = self._find_kept(seen.path), max(self.look.versions, default=0)
        retention = self.permission.retention_seconds
        match seen.kind.ends:
            case Ends.DAY:
                until = seen.modified_at_nanos + round(_STAGED_SECONDS * 1e9)
                return seen.kind.ends, until
            case Ends.NOTHING:
                return f"kept: {kept}" if kept else seen.kind.ends, None
            case Ends.GARBAGE:
                expires = self._find_expiry(latest, older=True)
                if _WAITS in (kept or ""):
                    grace = round(self.permission.grace_seconds * 1e9)
                    expires = max(expires or 0, self.now_nanos + grace)
                return f"kept: {kept or seen.kind.ends}", expires
        if seen.pins:
            return f"kept by {', '.join(name_some(seen.pins, _NAMED_MAX, 'others'))}", None
        if not seen.newest:
            until = seen.modified_at_nanos + round(_LEFTOVER_SECONDS * 1e9)
            return "no version names it: Lance's cleanup deletes it once it is a week old", until
        named = f"version {seen.newest} names it"
        if seen.newest >= latest:
            return f"version {seen.newest}, the latest, names it", None
        if retention is None:
            return f"{named}, and no retention expires it", None
        expires = self._find_expiry(seen.newest)
        if expires is not None and expires <= self.now_nanos:
            return f"{named}, and stays although it is older (warnings)", None
        return named, expires

    def _find_kept(self, path: str) -> str | None:
        """Garbage's reason for the object, or for the folder that it is in."""
        parts = path.split("/")
        folders = ("/".join(parts[:depth]) for depth in range(len(parts), 0, -1))
        return next((self.kept[folder] for folder in folders if folder in self.kept), None)

    def _find_expiry(self, version: int, *, older: bool = False) -> int | None:
        """When a version, or the newest one before it, expires, and then the grace is over."""
        times, wait = self.look.versions, self.permission.retention_seconds
        known = max((v for v in times if v < version), default=None) if older else version
        if known is None or known not in times or wait is None:
            return None
        return times[known] + round((wait + older * self.permission.grace_seconds) * 1e9)


def is_again(seen: Sighting, erasure: Erasure) -> bool:
    """Whether what has the key was written after the tombstones."""
    clean = erasure.clean_version
    if seen.kind is ObjectKind.DATA:
        return clean is not None and seen.oldest >= clean
    if clean is None and not erasure.marks:
        return False
    mark = erasure.marks.get(seen.shard_id) if seen.shard_id is not None else None
    if seen.kind is ObjectKind.WAL_ENTRY:
        return mark is None or seen.number > mark.position
    if seen.kind is ObjectKind.GENERATION:
        return mark is None or seen.number > mark.generation
    return False


def count_holders(look: SearchResult, findings: Iterable[Finding]) -> dict[str, int]:
    """What holds the keys, or may, by kind; the files of an index or of a generation are one."""
    groups = {seen.path: seen.group or seen.path for seen in look.sightings}
    held = {(found.kind, groups[found.path]) for found in findings if found.is_left}
    return dict(Counter(kind for kind, _ in held))


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


def find_until(findings: Iterable[Finding]) -> str | None:
    """When all that is left can be gone, if that is known of everything."""
    times = [found.until for found in findings if found.is_left]
    return None if None in times else max((t for t in times if t is not None), default=None)


def describe_stuck(uri: str, findings: Iterable[Finding]) -> str | None:
    """What keeps an erasure open for an unknown time, on one line: each reason with the first
    object that it keeps. None where a later run is sure to end it.
    """
    reasons: dict[str, list[str]] = {}
    for found in findings:
        if found.is_left and found.until is None:
            reasons.setdefault(found.why.partition("; ")[2] or found.why, []).append(found.path)
    if not reasons:
        return None
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
    there = {(s.shard_id, s.number) for s in sightings if s.kind is ObjectKind.GENERATION}
    found = []
    for seen in sightings:
        shard, generation = views.get(seen.shard_id or ShardId("")), seen.generation
        if seen.kind is not ObjectKind.WAL_ENTRY or not seen.rows or is_again(seen, erasure):
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
