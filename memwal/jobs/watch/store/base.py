"""Reads a table's latest version, again only when its manifest file has changed."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from memwal.errors import Missing, NotATable
from memwal.format import layout
from memwal.model import StoredFile, VersionFacts
from memwal.ports import Objects
from memwal.store.tables.manifests import TAIL_BYTES, TableManifests, check_table_folder

_ATTEMPTS_MAX = 3
# A manifest of 10,000 shards fits into this and costs one request; larger ones cost three.
_TAIL_BYTES_MAX = 8 * 1024 * 1024
# The most that a watch reads of one table in its own process: a manifest of a million fragments.
_MANIFEST_BYTES_MAX = 256 * 1024 * 1024
# A tagged version may outlive the one after it, so that probing for the next version finds nothing.
# So versions are listed again after this many looks at most.
_LOOKS_UNLISTED = 10
# A manifest's last bytes, with its time and the name of its transaction, tell it from others.
_MARK_BYTES = 8 * 1024


class LatestVersion:
    """The latest version of one table; the same object is returned while its file is the same."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._file: StoredFile | None = None
        self._facts: VersionFacts | None = None
        self._mark = b""
        self._unlisted = 0

    def read(self) -> VersionFacts:
        """What the latest version's manifest says. Raises NotATable, Corruption."""
        if self._facts is not None and self._is_still_latest(self._facts.manifest.version):
            return self._facts
        for _ in range(_ATTEMPTS_MAX):
            version, file = self._find()
            self._unlisted = _LOOKS_UNLISTED
            try:
                mark = b"" if self._is_listed else self._read_mark(file.path)
                if self._facts is not None and file == self._file and mark == self._mark:
                    return self._facts
                facts = self._read(version, file)
            except Missing as error:
                missing = error  # expired since it was listed, so there is a newer one
                continue
            self._file, self._facts, self._mark = file, facts, mark
            return facts
        raise missing

    @property
    def _is_listed(self) -> bool:
        """Whether the store lists in pages: then the newest version costs one request to list."""
        return self._objects.page_objects > 0

    def _is_still_latest(self, version: int) -> bool:
        """Whether probes show that this is still the latest version, so that no listing is needed.

        They replace a listing where that takes longer the more versions there are: this version's
        file has to be unchanged, and the next version's must not exist.
        """
        self._unlisted -= 1
        if self._is_listed or self._file is None or self._unlisted < 0:
            return False
        scheme = layout.table_manifest_names(version).index(self._file.path.rpartition("/")[2])
        following = layout.table_manifest_names(version + 1)[scheme]
        try:
            if self._read_mark(self._file.path) != self._mark:
                return False
        except Missing:
            return False
        return not self._objects.exists(f"{layout.VERSIONS}/{following}")

    def _read_mark(self, path: str) -> bytes:
        tail, size = self._objects.get_tail(path, _MARK_BYTES)
        return blake2b(tail, digest_size=16, key=size.to_bytes(8)).digest()

    def _find(self) -> tuple[int, StoredFile]:
        found = find_latest(self._objects.list(layout.VERSIONS), self._objects.page_objects)
        if found is None:
            check_table_folder(self._objects)
            raise NotATable(f"{self._objects.uri}: its {layout.VERSIONS} folder has no version")
        return found

    def _read(self, version: int, file: StoredFile) -> VersionFacts:
        tail_bytes = min(max(file.size_bytes, TAIL_BYTES), _TAIL_BYTES_MAX)
        manifests = TableManifests(
            self._objects, tail_bytes=tail_bytes, read_bytes_max=_MANIFEST_BYTES_MAX
        )
        return manifests.facts(file.path, version)


def find_latest(files: Iterable[StoredFile], page_objects: int) -> tuple[int, StoredFile] | None:
    """The newest version that is not detached, and its file; None without any.

    With Lance's present naming scheme, a sorted listing has the newest version first. So the first
    page is enough if its names show that the scheme is used and the listing is sorted.
    """
    latest: tuple[int, StoredFile] | None = None
    is_newest_first, last = True, ""
    for number, file in enumerate(files, start=1):
        version = layout.parse_table_manifest_name(file.path.removeprefix(f"{layout.VERSIONS}/"))
        is_newest_first &= last < file.path
        last = file.path
        if version is not None and not layout.is_detached(version):
            is_newest_first &= file.path.endswith(f"/{layout.table_manifest_names(version)[0]}")
            if latest is None or version > latest[0]:
                latest = version, file
        if number == page_objects and is_newest_first and latest is not None:
            break
    return latest
