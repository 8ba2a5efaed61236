"""Backups: a document and a list of objects each, below `_maintenance/backups/` of their place.

A place is a table of its own. The document is stored last: without it there is no backup, whatever
else is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from memwal.errors import AlreadyExists, Corruption, Missing, Refused, Usage
from memwal.format import codec, layout
from memwal.model import Backup, BackupMark, BackupObject
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.store.records.documents import delete_document
from memwal.text import iso_time, name_some
from memwal.threads import side_by_side

_READERS_MAX = 16
_NAMED_MAX = 10


class StoredBackups:
    """The backups of one place."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def list(self) -> Sequence[Backup]:
        """All backups, oldest first.

        Raises Corruption for one that can't be read: nobody knows what it needs.
        """
        found = side_by_side(self._read, self._names(), _READERS_MAX)
        there = [backup for backup in found if backup is not None]
        return sorted(there, key=lambda b: (b.made_at_nanos, b.name))

    def newest(self) -> Backup | None:
        """The backup whose document was stored last, by two requests; None without any.

        In a place that was itself copied, file times may say otherwise than `list`.
        """
        files = list(self._objects.list(layout.BACKUPS))
        for file in sorted(files, key=lambda f: (f.modified_at_nanos, f.path), reverse=True):
            name = layout.parse_backup_path(file.path)
            if name is not None and (found := self._read(name)) is not None:
                return found
        return None

    def find(self, name: str | None = None) -> Backup:
        """The newest backup, or the one of a name. Raises Usage, which names all there are."""
        known = self.list()
        found = [b for b in known if name in (None, b.name)]
        if not found:
            names = name_some([b.name for b in reversed(known)], _NAMED_MAX, "backups")
            none = "the place has none, or is not there"
            there = f"there are: {', '.join(names)}" if known else none
            wanted = "no backup" if name is None else f"no backup {name!r}"
            raise Usage(f"{self._objects.uri}: there is {wanted}; {there}")
        return found[-1]

    def objects_of(self, backup: Backup) -> Sequence[BackupObject]:
        """What the backup needs. Raises Corruption for a list that is gone or another one."""
        path = layout.backup_objects_path(backup.name)
        try:
            data = self._objects.get(path)
        except Missing:
            raise self._unreadable(path, "is gone") from None
        if hashlib.sha256(data).digest() != backup.objects_sha256:
            raise self._unreadable(path, "is not the list that the document names")
        return self._decode_list(path, data)

    def objects_of_left(self, name: str) -> Sequence[BackupObject]:
        """What a list without a document names; nothing once it is gone. Raises Corruption."""
        path = layout.backup_objects_path(name)
        try:
            return self._decode_list(path, self._objects.get(path))
        except Missing:
            return ()

    def check_free(self, name: str) -> None:
        """Raise Refused where there is a backup of that name."""
        if name in self._names():
            there = self._read(name)
            made = "" if there is None else f", made {iso_time(there.made_at_nanos)}"
            raise Refused(
                "MW-A02",
                f"{self._objects.uri}: backup {name!r} is there{made}: choose another --name, or "
                "drop it first",
            )

    def refuse_any(self) -> None:
        """Raise Refused where there is a backup, or a list of one: only `drop` deletes there."""
        files = self._objects.list(layout.BACKUPS)
        if any(f.path != layout.BACKUP_MARK for f in files):
            raise Refused(
                "MW-A10",
                f"{self._objects.uri} holds backups, which need what a table does not: only "
                "`memwal backup drop` deletes there. Restore a backup elsewhere to write to it",
            )

    def put(self, backup: Backup, objects: Iterable[BackupObject]) -> Backup:
        """Store the list, then the document, which makes it a backup; returns it with its sums.

        A list of that name that a killed run left is replaced. Raises Refused where the name is
        taken.
        """
        objects = tuple(objects)
        data = codec.encode_backup_objects(objects)
        made = replace(
            backup,
            num_objects=len(objects),
            num_bytes=sum(found.size_bytes for found in objects),
            objects_sha256=hashlib.sha256(data).digest(),
        )
        document = codec.encode_backup(made)
        codec.decode_backup(document, name=made.name)  # what can't be read again is not stored
        self.check_free(made.name)
        path = layout.backup_objects_path(made.name)
        try:
            self._objects.put_if_absent(path, data)
        except AlreadyExists:
            self._objects.put(path, data)
        try:
            self._objects.put_if_absent(layout.backup_path(made.name), document)
        except AlreadyExists:
            if self._read(made.name) != made:  # the reply to our own put may have been lost
                self.check_free(made.name)
                raise
        return made

    def remove_document(self, name: str) -> None:
        """Delete a backup's document: it is none from then on. Raises StoreUnavailable."""
        delete_document(self._objects, layout.backup_path(name))

    def remove_list(self, name: str) -> None:
        """Delete the list of a backup whose document is gone. Raises StoreUnavailable."""
        delete_document(self._objects, layout.backup_objects_path(name))

    def left_lists(self) -> Sequence[str]:
        """Names of lists without a document, which killed runs left."""
        paths = [file.path for file in self._objects.list(layout.BACKUPS)]
        lists = {layout.parse_backup_objects_path(path) for path in paths} - {None}
        return sorted(str(name) for name in lists - set(map(layout.parse_backup_path, paths)))

    def read_mark(self) -> BackupMark | None:
        """The mark of a run under way, or of one that was killed; None without any."""
        try:
            return codec.decode_backup_mark(self._objects.get(layout.BACKUP_MARK))
        except Missing:
            return None
        except Corruption as error:
            raise self._unreadable(layout.BACKUP_MARK, error.text) from None

    def put_mark(self, mark: BackupMark) -> None:
        """Store the mark, replacing the one that is there."""
        self._objects.put(layout.BACKUP_MARK, codec.encode_backup_mark(mark))

    def remove_mark(self) -> None:
        """Delete the mark. Raises StoreUnavailable."""
        delete_document(self._objects, layout.BACKUP_MARK)

    def _names(self) -> Sequence[str]:
        found = (layout.parse_backup_path(f.path) for f in self._objects.list(layout.BACKUPS))
        return sorted(name for name in found if name is not None)

    def _read(self, name: str) -> Backup | None:
        path = layout.backup_path(name)
        try:
            return codec.decode_backup(self._objects.get(path, DOCUMENT_BYTES_MAX), name=name)
        except Missing:
            return None  # dropped since it was listed
        except Corruption as error:
            raise self._unreadable(path, error.text) from None

    def _unreadable(self, path: str, what: str) -> Corruption:
        return Corruption(
            "MW-A01",
            f"{self._objects.uri}: {path} {what}, so nothing tells what the backup needs: was it "
            "made by a newer memwal? If not, move the file away",
        )

    def _decode_list(self, path: str, data: bytes) -> Sequence[BackupObject]:
        try:
            return codec.decode_backup_objects(data)
        except Corruption as error:
            raise self._unreadable(path, error.text) from None
