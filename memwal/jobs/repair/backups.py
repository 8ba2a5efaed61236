"""What backups have of a table: it stands in for what nothing in the table brings back.

An object is taken only if its own digest is that of the backup's list. By its path it is known
where Lance and MemWAL writers give a name once. A version's manifest has a number for a name: it is
taken only if those next to it are the backup's, too. In a table that was made again or restored
since, or in another one, the same number is something else. Files of the base that both have are
compared: a file that is damaged at its full length is found by reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate

from memwal.errors import Corruption, LostRace, Missing
from memwal.format import layout
from memwal.jobs.backup.plan import NUMBERED, phase_of
from memwal.jobs.repair.model import Damage, Replace
from memwal.jobs.repair.plan import judge_file
from memwal.model import BackupObject, StoredFile
from memwal.ports import PART_BYTES, Objects
from memwal.run.progress import Progress
from memwal.store.objects.copying import ObjectParts, copy_object, digest_object
from memwal.store.records.backups import StoredBackups
from memwal.threads import Tally, side_by_side

_READERS_MAX = 4
_BASE_FOLDERS = ("data", "_deletions")


@dataclass(frozen=True, kw_only=True)
class BackedUp:
    """The objects of a place's backups by path, each as the newest backup has it.

    `names` are those of the backups, `own` those that were made of the table at its address.
    """

    place: Objects
    table: Objects
    found: Mapping[str, BackupObject]
    names: Mapping[str, str]
    own: Set[str]
    progress: Progress
    _sound: set[StoredFile] = field(default_factory=set)

    @classmethod
    def read(cls, place: Objects, table: Objects, progress: Progress) -> BackedUp:
        """Read the lists of all backups of the place. Raises Usage without any, Corruption."""
        backups = StoredBackups(place)
        backups.find()
        found: dict[str, BackupObject] = {}
        names: dict[str, str] = {}
        for backup in backups.list():
            for one in backups.objects_of(backup):
                found[one.path], names[one.path] = one, backup.name
        own = frozenset(b.name for b in backups.list() if b.source == table.uri)
        return cls(place=place, table=table, found=found, names=names, own=own, progress=progress)

    def mend(self, damages: Sequence[Damage]) -> list[Damage]:
        """The damages, mended by what the backups have of their objects, if they have any.

        With those that only a comparison with the backups finds.
        """
        damaged = {path for damage in damages for path in damage.objects}
        garbled = self._find_garbled(damaged)
        return [self._mend(damage, damaged) for damage in (*garbled, *damages)]

    def _find_garbled(self, damaged: Set[str]) -> list[Damage]:
        """Files of the base with other bytes than the backups have, found by reading all of them.

        A name of theirs is given once, so both are the same file. Each is read once by a repair.
        """
        files = [
            file
            for folder in _BASE_FOLDERS
            for file in self.table.list(folder)
            if file.path in self.found and file.path not in damaged and file not in self._sound
        ]
        if files:
            total = sum(file.size_bytes for file in files)
            self.progress.start("files of the base, compared with the backups", len(files), total)
        tally = Tally(self.progress.done)
        differ = side_by_side(lambda file: self._is_garbled(file, tally), files, _READERS_MAX)
        text = "has other bytes than backup {} has of it"
        return [
            judge_file(file.path, text.format(self.names[file.path]))
            for file, differs in zip(files, differ, strict=True)
            if differs
        ]

    def _is_garbled(self, file: StoredFile, tally: Tally) -> bool:
        try:
            there = digest_object(self.table, file.path)
        except Missing:
            return False  # collected since it was listed; a look finds it if it is needed
        tally.add(file.size_bytes)
        if there != self.found[file.path]:
            return True
        self._sound.add(file)
        return False

    def _mend(self, damage: Damage, damaged: Set[str]) -> Damage:
        if damage.effects or not damage.objects:
            return damage
        wanted = [self.found[path] for path in self._list_there(damage.objects)]
        ours = [one for one in wanted if self._is_ours(one.path, damaged)]
        effects = [fetch for one in ours if (fetch := self._fetch_other(one)) is not None]
        if not effects:
            names = ", ".join(sorted({self.names[one.path] for one in wanted if one not in ours}))
            why = f"{damage.evidence}; what backup {names} has there is of another history"
            return damage.model_copy(update={"evidence": why}) if names else damage
        names = ", ".join(sorted({self.names[fetch.path] for fetch in effects}))
        why = f"backup {names} of {self.place.uri} has it"
        return damage.model_copy(update={"evidence": why, "lost": (), "effects": tuple(effects)})

    def _is_ours(self, path: str, damaged: Set[str]) -> bool:
        """Whether the backup's object of that name is the table's.

        Of a version, the nearest neighbours that both have are compared; without any, there has to
        be a file in both that Lance named at random. Where none follows, histories may have parted
        just there: then only a backup that was made of this very place tells.
        """
        if phase_of(path) not in NUMBERED:
            return True
        if (here := _version_of(path)) is None:
            return False
        there = {
            version: file.path
            for file in self.table.list(layout.VERSIONS)
            if file.path in self.found and file.path not in damaged
            if (version := _version_of(file.path)) not in (None, here)
        }
        if not there:
            shared = any(file.path in self.found for file in self.table.list("data"))
            return self.names[path] in self.own and shared
        below, above = [n for n in there if n < here], [n for n in there if n > here]
        near = [there[n] for n in (*sorted(below)[-1:], *sorted(above)[:1])]
        agrees = all(digest_object(self.table, p).sha256 == self.found[p].sha256 for p in near)
        return agrees and bool(above or self.names[path] in self.own)

    def _list_there(self, paths: Sequence[str]) -> list[str]:
        """What the backups have at these paths, or in folders of these names."""
        wanted = set(paths)
        return [path for path in self.found if not wanted.isdisjoint(_list_folders(path))]

    def _fetch_other(self, wanted: BackupObject) -> Replace | None:
        """Fetches what the table lacks or has other bytes of."""
        try:
            there = digest_object(self.table, wanted.path)
        except Missing:
            return Replace(path=wanted.path, by=wanted, digest=None)
        if there.sha256 == wanted.sha256:
            return None
        return Replace(path=wanted.path, by=wanted, digest=there.sha256.hex())

    def fetch(self, wanted: BackupObject, *, is_there: bool) -> None:
        """Copy an object into the table. What was in its place is in quarantine by now.

        One put replaces it, so that a version's name is never free; of a file that is too large
        for that, the name is. Raises Corruption for one that is damaged in the backup, of which
        nothing is stored.
        """
        path = wanted.path
        try:
            if not is_there:
                copy_object(self.place, self.table, path, expected=wanted)
            elif path.startswith(f"{layout.VERSIONS}/") or wanted.size_bytes <= PART_BYTES:
                parts = ObjectParts(objects=self.place, path=path, expected=wanted)
                self.table.put(path, b"".join(parts))
            else:
                digest_object(self.place, path, expected=wanted)
                for _, why in self.table.delete([path]).failed:
                    raise LostRace(f"{self.table.uri}: {path} can't be replaced: {why}")
                copy_object(self.place, self.table, path, expected=wanted)
        except Missing:
            text = f"{self.place.uri}/{path} is gone, and the backup's list names it"
            raise Corruption("MW-A07", text) from None


def _list_folders(path: str) -> Iterator[str]:
    """The path, and the folders above it."""
    return accumulate(path.split("/"), lambda folder, name: f"{folder}/{name}")


def _version_of(path: str) -> int | None:
    """The version whose manifest it is; None for any other file."""
    folder, _, name = path.rpartition("/")
    return layout.parse_table_manifest_name(name) if folder == layout.VERSIONS else None
