"""What backups have of a table: it stands in for what nothing in the table brings back.

An object is taken by its path, which Lance and MemWAL writers never use twice for other bytes, and
only if its own digest is that of the backup's list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from memwal.errors import Corruption, LostRace, Missing
from memwal.format import layout
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

    def mend(self, damage: Damage) -> Damage:
        """The damage, mended by what the backups have of its objects, if they have any."""
        if damage.action is Action.MEND or not damage.objects:
            return damage
        effects = [fetch for path in damage.objects for fetch in self._list_other(path)]
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

    def _list_other(self, path: str) -> list[Fetch]:
        """The objects at a path, or in its folder, that the table lacks or has other bytes of."""
        wanted = [o for p, o in self.found.items() if p == path or p.startswith(f"{path}/")]
        fetches = []
        for one in wanted:
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
