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
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import cached_property, partial

from memwal.errors import Refused
from memwal.format import layout
from memwal.jobs.garbage.plan import Permission
from memwal.model import Checkpoint, Erasure, ErasureMark, ShardId, ShardView, StoredFile, TableView
from memwal.text import iso_time, name_some

_NAMED_MAX = 5
_WAITS = "grace"  # is in garbage's reasons for what goes when the grace is over
_LEFTOVER_SECONDS = 7 * 86_400.0
"""After this long Lance's cleanup deletes a file that no version names."""
DETACHED = 0
"""Stands for detached versions: they come after none, and no cleanup expires them."""
DETACHED_TEXT = "a detached version"
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

    file: StoredFile
    kind: ObjectKind
    rows: int | None
    how: str
    newest: int = 0
    oldest: int = 0
    pins: tuple[str, ...] = ()
    group: str | None = None
    shard_id: ShardId | None = None
    number: int = 0
    generation: int | None = None
    writer_epoch: int | None = None

    @property
    def path(self) -> str:
        """Where it is."""
        return self.file.path


def begin_sighting(file: StoredFile) -> Sighting:
    """What an object's path says of it, before anything is read."""
    parts = file.path.split("/")
    kind = next(kind for kind in ObjectKind if kind.paths.fullmatch(file.path))
    seen = Sighting(file=file, kind=kind, rows=None, how=kind.by)
    match kind:
        case ObjectKind.INDEX:
            return replace(seen, group=parts[1])
        case ObjectKind.VERSION:
            number = layout.parse_table_manifest_name(parts[1]) or 0
            detached = layout.is_detached(number)
            return (
                replace(seen, pins=(DETACHED_TEXT,)) if detached else replace(seen, newest=number)
            )
        case ObjectKind.TRANSACTION:
            read = parts[1].partition("-")[0]
            return replace(seen, newest=int(read) + 1 if read.isdigit() else 0)
        case ObjectKind.WAL_ENTRY:
            number = layout.parse_wal_entry_name(parts[3]) or 0
            return replace(seen, shard_id=ShardId(parts[1]), number=number)
        case ObjectKind.GENERATION:
            number, group = layout.parse_generation_folder(parts[2]) or 0, "/".join(parts[:3])
            return replace(seen, shard_id=ShardId(parts[1]), number=number, group=group)
    return seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """A tag that keeps rows; that of a `checkpoint` keeps its generations, too."""

    tag: str
    version: int
    checkpoint: Checkpoint | None = None

    def __str__(self) -> str:
        found = self.checkpoint
        return f"tag {self.tag!r}" if found is None else f"checkpoint {found.name!r}"


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
        return bool(self.rows) or any(
            s.kind is not ObjectKind.ERASED_KEYS if s.rows else s.group in self.index_names
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
        """Each object's finding, in the order of the sightings."""
        return [self._judge(seen) for seen in self.look.sightings]

    def _judge(self, seen: Sighting) -> Finding:
        index, rebuilt = self.look.index_names.get(str(seen.group)), self.erasure.clean_version
        left = self.erasure.not_rebuilt
        find = partial(self._find, seen)
        if seen.kind.by is By.ELSEWHERE:
            return find(State.OUTSIDE, seen.how)
        if seen.kind is ObjectKind.ERASED_KEYS and seen.rows:
            return find(State.HELD, "the keys of an open erasure, until nothing else holds them")
        if seen.kind is ObjectKind.INDEX:
            # By when it was built: Lance keeps values of deleted rows in some kinds.
            if index is not None and index in left:
                return find(State.HELD, f"index {index!r}: {left[index]}")
            if rebuilt is not None and seen.newest >= rebuilt:
                return find(State.ABSENT, f"built of the rows of version {rebuilt} or later")
            return find(State.HELD, "may hold their values", *self._explain(seen))
        if seen.rows == 0:
            return find(State.ABSENT, seen.how)
        if seen.kind.by is By.STAGED:
            return find(State.UNKNOWN, seen.how, *self._explain(seen))
        if seen.rows is None:
            return find(State.UNKNOWN, seen.how)
        what = f"{seen.how}: {seen.rows} with an erased key"
        if is_again(seen, self.erasure):
            return find(State.AGAIN, f"{what}, written since the erasure")
        return find(State.HELD, what, *self._explain(seen))

    def _find(
        self, seen: Sighting, state: State, what: str, stay: str = "", until: int | None = None
    ) -> Finding:
        """What was found, why it is still there, and until when at the least; no time that has
        passed already.
        """
        return Finding(
            path=seen.path,
            kind=seen.kind.name.lower(),
            state=state,
            why=f"{what}; {stay}" if stay else what,
            bytes=seen.file.size_bytes,
            until=None if until is None or until <= self.now_nanos else iso_time(until),
        )

    def _explain(self, seen: Sighting) -> tuple[str, int | None]:
        """Why an object is still there, and until when at the least."""
        kept, ends, latest = (
            self._find_kept(seen),
            seen.kind.ends,
            max(self.look.versions, default=0),
        )
        if ends is Ends.DAY:
            return ends, seen.file.modified_at_nanos + round(_STAGED_SECONDS * 1e9)
        if ends is Ends.NOTHING:
            return f"kept: {kept}" if kept else ends, None
        if ends is Ends.GARBAGE:
            grace = round(self.permission.grace_seconds * 1e9)
            before = max((v for v in self.look.versions if v < latest), default=0)
            expires = self._find_expiry(before)
            expires = None if expires is None else expires + grace
            if _WAITS in (kept or ""):
                expires = max(expires or 0, self.now_nanos + grace)
            return f"kept: {kept or ends}", expires
        if seen.pins:
            return f"kept by {', '.join(name_some(seen.pins, _NAMED_MAX, 'others'))}", None
        if not seen.newest:
            until = seen.file.modified_at_nanos + round(_LEFTOVER_SECONDS * 1e9)
            return "no version names it: Lance's cleanup deletes it once it is a week old", until
        if seen.newest >= latest:
            return f"version {seen.newest}, the latest, names it", None
        expires = self._find_expiry(seen.newest)
        named = f"version {seen.newest} names it"
        if self.permission.retention_seconds is None:
            named += ", and no retention expires it"
        elif expires is not None and expires <= self.now_nanos:
            named += ", and stays although it is older (warnings)"
        return named, expires

    def _find_kept(self, seen: Sighting) -> str | None:
        """Garbage's reason for the object, or for the folder that it is in. A WAL entry stays at
        the least until the generation that covers it is deleted.
        """
        cover = self._covers.get((seen.shard_id, seen.generation or 0))
        parts = (cover or seen.path).split("/")
        folders = ("/".join(parts[:depth]) for depth in range(len(parts), 0, -1))
        return next((self.kept[folder] for folder in folders if folder in self.kept), None)

    @cached_property
    def _covers(self) -> dict[tuple[ShardId | None, int], str | None]:
        there = (s for s in self.look.sightings if s.kind is ObjectKind.GENERATION)
        return {(s.shard_id, s.number): s.group for s in there}

    def _find_expiry(self, version: int) -> int | None:
        made, wait = self.look.versions.get(version), self.permission.retention_seconds
        return None if made is None or wait is None else made + round(wait * 1e9)


def mark_shards(view: TableView, look: SearchResult) -> dict[str, ErasureMark]:
    """How far every shard goes; one without a manifest too, by what lies in its folder."""
    highest: dict[tuple[ShardId, ObjectKind], int] = {}
    for seen in look.sightings:
        if seen.shard_id is not None:
            at = seen.shard_id, seen.kind
            highest[at] = max(seen.number, highest.get(at, 0))
    for shard in view.shards:
        manifest, at = shard.manifest, (shard.shard_id, ObjectKind.WAL_ENTRY)
        highest[at] = max(manifest.replay_after_wal_entry_position, highest.get(at, 0))
        highest[shard.shard_id, ObjectKind.GENERATION] = manifest.current_generation - 1
    return {
        shard: ErasureMark(
            position=highest.get((shard, ObjectKind.WAL_ENTRY), 0),
            generation=highest.get((shard, ObjectKind.GENERATION), 0),
        )
        for shard, _ in highest
    }


def is_again(seen: Sighting, erasure: Erasure) -> bool:
    """Whether what has the key was written after the tombstones."""
    clean, mark = erasure.clean_version, erasure.marks.get(seen.shard_id or "")
    if seen.kind is ObjectKind.DATA:
        return clean is not None and seen.oldest >= clean
    if seen.kind not in (ObjectKind.WAL_ENTRY, ObjectKind.GENERATION):
        return False
    if mark is None:
        return clean is not None or bool(erasure.marks)
    is_entry = seen.kind is ObjectKind.WAL_ENTRY
    return seen.number > (mark.position if is_entry else mark.generation)


def count_holders(look: SearchResult, findings: Iterable[Finding]) -> dict[str, int]:
    """What holds the keys, or may, by kind; the files of an index or of a generation are one."""
    groups = {seen.path: seen.group or seen.path for seen in look.sightings}
    held = {(found.kind, groups[found.path]) for found in findings if found.is_left}
    return dict(Counter(kind for kind, _ in held))


def check_pins(uri: str, pins: Sequence[Pin], through_tags: bool) -> None:
    """Raise Refused where tags or checkpoints keep the rows, and may not be deleted."""
    if not pins or through_tags:
        return
    names = name_some([*map(str, pins)], _NAMED_MAX, "others")
    raise Refused(
        "MW-Z01",
        f"{uri}: {', '.join(names)} would keep the rows: drop what nobody needs, or pass "
        "--through-tags, which deletes them; nothing was erased",
    )


def find_until(findings: Iterable[Finding]) -> str | None:
    """When all that is left can be gone, if that is known of everything."""
    times = [found.until for found in findings if found.is_left]
    return None if None in times else max((t for t in times if t is not None), default=None)


def describe_stuck(uri: str, findings: Iterable[Finding]) -> str | None:
    """What keeps an erasure open for an unknown time: each reason with the first object that it
    keeps. None where a later run is sure to end it.
    """
    reasons: dict[str, str] = {}
    for found in findings:
        if found.is_left and found.until is None:
            reasons.setdefault(found.why.partition("; ")[2] or found.why, found.path)
    named = name_some([f"{why} ({path})" for why, path in reasons.items()], _NAMED_MAX, "reasons")
    text = f"{uri}: no later run is sure to end the erasure: {'; '.join(named)}"
    return text if reasons else None


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

    def is_spent(seen: Sighting) -> bool:
        shard, generation = views.get(seen.shard_id or ShardId("")), seen.generation or 0
        return (
            seen.kind is ObjectKind.WAL_ENTRY
            and bool(seen.rows)
            and not is_again(seen, erasure)
            and shard is not None
            and seen.number <= shard.manifest.replay_after_wal_entry_position
            and 1 <= generation <= shard.merged_generation
            and generation not in {g.generation for g in shard.manifest.flushed_generations}
            and (seen.shard_id, generation) not in there
        )

    return [*filter(is_spent, sightings)]
