"""What backups have of a table: it stands in for what nothing in the table brings back.

An object is taken only if its own digest is that of the backup's list. By its path it is known
where Lance and MemWAL writers give a name once. Manifests and WAL entries have numbers for names:
one is taken only if those next to it are the backup's, too. In a table that was made again or
restored since, or in another one, the same number is something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from memwal.errors import Corruption, LostRace, Missing
from memwal.format import layout
from memwal.jobs.backup.plan import NUMBERED, phase_of
from memwal.jobs.repair.model import Action, Damage, Fetch
from memwal.model import BackupObject
from memwal.ports import PART_BYTES, Objects
from memwal.store.objects.copying import ObjectParts, copy_object, digest_object
from memwal.store.records.backups import StoredBackups


@dataclass(frozen=True, kw_only=True)
class BackedUp:
    """The objects of a place's backups by path, each as the newest backup has it.

    `names` are those of the backups.
    """

    place: Objects
    table: Objects
    found: Mapping[str, BackupObject]
    names: Mapping[str, str]
    _listed: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, place: Objects, table: Objects) -> BackedUp:
        """Read the lists of all backups of the place. Raises Usage without any, Corruption."""
        backups = StoredBackups(place)
        backups.find()
        found: dict[str, BackupObject] = {}
        names: dict[str, str] = {}
        for backup in backups.list():
            for one in backups.objects_of(backup):
                found[one.path], names[one.path] = one, backup.name
        return cls(place=place, table=table, found=found, names=names)

    def mend(self, damages: Sequence[Damage]) -> list[Damage]:
        """The damages, mended by what the backups have of their objects, if they have any."""
        damaged = {path for damage in damages for path in damage.objects}
        return [self._mend(damage, damaged) for damage in damages]

    def _mend(self, damage: Damage, damaged: Set[str]) -> Damage:
        if damage.action is Action.MEND or not damage.objects:
            return damage
        effects = [fetch for path in damage.objects for fetch in self._list_other(path, damaged)]
        if not effects:
            return damage
        names = ", ".join(sorted({self.names[fetch.path] for fetch in effects}))
        return replace(
            damage,
            action=Action.MEND,
            evidence=f"backup {names} of {self.place.uri} has it",
            lost=(),
            loses_rows=False,
            fences=False,
            effects=tuple(effects),
        )

    def _is_ours(self, path: str, damaged: Set[str]) -> bool:
        """Whether the backup's object of a numbered name is the table's.

        The nearest neighbours that both have are compared; without any, there has to be a file in
        both that Lance or a writer named at random.
        """
        here = _number_of(path) or 0
        there = {
            number: other
            for other in self._list(path.rpartition("/")[0])
            if other not in damaged and (number := _number_of(other)) is not None
        }
        there.pop(here, None)
        if not there:
            return bool(self._list("data"))
        below, above = [n for n in there if n < here], [n for n in there if n > here]
        near = [there[n] for n in (*sorted(below)[-1:], *sorted(above)[:1])]
        return all(digest_object(self.table, p).sha256 == self.found[p].sha256 for p in near)

    def _list(self, folder: str) -> list[str]:
        """What both have in a folder."""
        if folder not in self._listed:
            files = [file.path for file in self.table.list(folder)]
            self._listed[folder] = [path for path in files if path in self.found]
        return self._listed[folder]

    def _list_other(self, path: str, damaged: Set[str]) -> list[Fetch]:
        """The objects at a path, or in its folder, that the table lacks or has other bytes of."""
        wanted = [o for p, o in self.found.items() if p == path or p.startswith(f"{path}/")]
        fetches = []
        for one in wanted:
            if phase_of(one.path) in NUMBERED and not self._is_ours(one.path, damaged):
                continue
            try:
                there = digest_object(self.table, one.path)
            except Missing:
                fetches.append(Fetch(wanted=one))
                continue
            if there.sha256 != one.sha256:
                fetches.append(Fetch(wanted=one, digest=there.sha256.hex()))
        return fetches

    def fetch(self, effect: Fetch) -> None:
        """Copy an object into the table. What was in its place is in quarantine by now.

        One put replaces it, so that a WAL position is never free; of a file that is too large for
        that, the name is. Raises Corruption for one that is damaged in the backup, of which nothing
        is stored.
        """
        wanted, path = effect.wanted, effect.path
        try:
            if effect.digest is None:
                copy_object(self.place, self.table, path, expected=wanted)
            elif path.startswith(f"{layout.MEM_WAL}/") or wanted.size_bytes <= PART_BYTES:
                parts = ObjectParts(objects=self.place, path=path, expected=wanted)
                self.table.put(path, b"".join(parts))
            else:
                digest_object(self.place, path, expected=wanted)
                for _, why in self.table.delete([path]).failed:
                    raise LostRace(f"{self.table.uri}: {path} can't be replaced: {why}")
                copy_object(self.place, self.table, path, expected=wanted)
        except Missing:
            text = f"{self.place.uri}/{effect.path} is gone, and the backup's list names it"
            raise Corruption("MW-A07", text) from None


def _number_of(path: str) -> int | None:
    """The version or position that is the name of a manifest or a WAL entry."""
    name = path.rpartition("/")[2]
    if path.startswith(f"{layout.VERSIONS}/"):
        return layout.parse_table_manifest_name(name)
    within = layout.parse_shard_path(path)
    if within is not None and within[1].startswith("wal/"):
        return layout.parse_wal_entry_name(name)
    return layout.parse_shard_manifest_name(name)
