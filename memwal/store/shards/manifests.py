"""The shard manifest store, and its cache: read the latest, commit the next, fence.

Interchangeable with pylance's writer in both directions: same names, same bytes, same
put-if-absent (spec: Shard Manifest Versioning, Writer Fencing).

The cache is for processes that look at the same table repeatedly. A manifest never changes, but its
name alone does not identify it: the table may have been created again with the same shard ids. So
an entry is matched by everything that a listing says about the file. It is used only for a file
that was listed just now, so the cache can't show more than the listing does. Deletes don't rely on
it: they read the manifests.

For tables of many shards the cache is also kept on disk, one file per table in the user's own
folder. That file is untrusted input like everything stored: its digest has to match, and each
manifest is decoded and checked like one of the table's. A broken file is ignored.
"""

from __future__ import annotations

import os
import threading
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from memwal import invariants
from memwal.errors import (
    AlreadyExists,
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    OutcomeUnknown,
    StandDown,
    StoreUnavailable,
)
from memwal.format import codec, layout
from memwal.model import ShardId, ShardManifest, StoredFile
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.rows.progress import digest_manifest

SHARDS_MIN = 1_000
"""With fewer there is little to gain: reading 1,000 manifests takes a second or two."""

_SWITCH = "MEMWAL_MANIFEST_CACHE"
_BYTES_MAX = 64 * 1024 * 1024
_FILES_MAX = 16
_SUFFIX = ".manifests"

# For all tables together, at some 1.5 KB each; beyond that, the least recently used tables go.
_MANIFESTS_MAX = 50_000


class _Document(BaseModel):
    """Of each manifest: its shard and version, its file's size, age and etag, and what it holds."""

    format: Literal[1] = 1
    manifests: Sequence[tuple[str, int, int, int, str, str]]


def find_cache_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder, made where it is missing; None where it is switched off or can't be trusted."""
    if environment.get(_SWITCH, "").lower() in ("off", "0", "no", "false"):
        return None
    try:
        given = environment.get("XDG_CACHE_HOME", "")
        base = Path(given) if given.startswith("/") else Path.home() / ".cache"
        folder = base / "memwal"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError):
        return None
    # A link is open to all by its mode.
    return folder if found.st_uid == os.getuid() and not found.st_mode & 0o077 else None


class ManifestFile:
    """The cache file of one table."""

    def __init__(self, folder: Path | None, *, store: str, uri: str) -> None:
        self._folder = folder
        self._name = blake2b(f"{store}\n{uri}".encode(), digest_size=16).hexdigest() + _SUFFIX

    def load(self, memory: ManifestMemory) -> None:
        """Add the file's manifests to `memory`, if there is a valid file."""
        if self._folder is None:
            return
        try:
            handle = os.open(self._folder / self._name, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(handle, "rb") as stream:
                digest, _, body = stream.read(_BYTES_MAX).partition(b"\n")
            if digest != _digest(body):
                return
            for entry in _Document.model_validate_json(body, strict=True).manifests:
                _add(memory, *entry)
        except (OSError, ValueError, MemWalError):
            return
        memory.unsaved = 0

    def save(self, memory: ManifestMemory) -> None:
        """Replace the file by what `memory` holds, and delete the oldest of too many files."""
        memory.unsaved = 0
        if self._folder is None:
            return
        entries = [
            (m.shard_id, m.version, f.size_bytes, f.modified_at_nanos, f.etag, _text(m.raw))
            for f, m in memory.list()
        ]
        body = _Document(manifests=entries).model_dump_json().encode()
        if len(body) >= _BYTES_MAX - 100:
            return
        staged = self._folder / f"{self._name}.{os.getpid()}"
        with suppress(OSError):
            staged.unlink(missing_ok=True)
            handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as stream:
                stream.write(_digest(body) + b"\n" + body)
            staged.replace(self._folder / self._name)
            ours = self._folder.glob(f"*{_SUFFIX}*")  # and nobody else's
            files = [(path.stat().st_mtime_ns, path) for path in ours]
            for _, path in sorted(files)[:-_FILES_MAX]:
                path.unlink(missing_ok=True)


def _add(
    memory: ManifestMemory, shard: str, version: int, size: int, at: int, etag: str, data: str
) -> None:
    shard_id = ShardId(shard)
    path = layout.shard_manifest_path(shard_id, version)
    file = StoredFile(path=path, size_bytes=size, modified_at_nanos=at, etag=etag)
    raw = b64decode(data, validate=True)
    memory.keep(file, codec.decode_shard_manifest(raw, shard_id=shard_id, version=version))


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode()


class ManifestMemory:
    """The newest manifest of each of a table's shards, as far as they were read.

    `unsaved` counts what was remembered since that was last stored elsewhere.
    """

    def __init__(self) -> None:
        self._found: dict[ShardId, tuple[StoredFile, ShardManifest]] = {}
        self.unsaved = 0

    def __len__(self) -> int:
        return len(self._found)

    def recall(self, shard_id: ShardId, file: StoredFile) -> ShardManifest | None:
        """The manifest in a listed file, if that very file was read before; else None."""
        found = self._found.get(shard_id)
        return found[1] if found is not None and found[0] == file else None

    def keep(self, file: StoredFile, manifest: ShardManifest) -> None:
        """Remember a file's manifest, if the listing gives the file an etag.

        Without one it can't be told from another file of its name: dates may be whole seconds, and
        sizes are often the same.
        """
        if file.etag:
            self._found[manifest.shard_id] = (file, manifest)
            self.unsaved += 1

    def list(self) -> Sequence[tuple[StoredFile, ShardManifest]]:
        """All that is remembered."""
        return tuple(self._found.values())

    def forget_others(self, shards: Container[ShardId]) -> None:
        """Keep only what is known of these shards."""
        for shard_id in tuple(self._found):  # other threads may look at the same table
            if shard_id not in shards:
                self._found.pop(shard_id, None)


class ManifestMemories:
    """What one process remembers of its tables."""

    def __init__(self, *, manifests_max: int = _MANIFESTS_MAX) -> None:
        self._manifests_max = manifests_max
        self._tables: OrderedDict[tuple[str, str], ManifestMemory] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, store: str, uri: str) -> ManifestMemory:
        """What is known of a table; the same address may be in two stores."""
        with self._lock:
            memory = self._tables.setdefault((store, uri), ManifestMemory())
            self._tables.move_to_end((store, uri))
            while len(self._tables) > 1 and self._count() > self._manifests_max:
                self._tables.popitem(last=False)
            return memory

    def _count(self) -> int:
        return sum(len(memory) for memory in self._tables.values())


MEMORIES = ManifestMemories()
"""The caches of this process."""


class Fenced(StandDown):
    """A newer writer epoch is stored: this writer must abort all operations."""


class ShardManifests:
    """The manifests of a table's shards."""

    def __init__(self, objects: Objects, *, probes_max: int = 16) -> None:
        self._objects = objects
        self._probes_max = probes_max

    def latest(self, shard_id: ShardId, known: ShardManifest | None = None) -> ShardManifest | None:
        """The newest manifest, or None for a shard that no writer has claimed yet.

        `known` was the newest one a while ago. It is read again, and is itself the answer where it
        is stored as it was and nothing came after it.

        The hint, then upwards until a version is missing; a listing when the hint is absent,
        points at nothing or at what was collected, or is more than `probes_max` behind. Raises
        Corruption for a torn or forged manifest: an older version is never served in place of a
        broken newer one.
        """
        hinted = None if known is None else known.version
        found = self._bytes(shard_id, hinted) if hinted is not None else None
        if known is None or found != known.raw:
            known, hinted = None, self.hint(shard_id)
            found = self._bytes(shard_id, hinted) if hinted is not None else None
        if hinted is None or found is None:
            return self._latest_by_listing(shard_id)
        version = hinted
        for _ in range(self._probes_max):
            following = self._bytes(shard_id, version + 1)
            if following is None:
                if layout.decode_stopper(found) is not None:
                    break
                if known is not None and known.version == version:
                    return known
                return self._decode(found, shard_id, version)
            found, version = following, version + 1
        return self._latest_by_listing(shard_id)

    def newest(
        self, shard_id: ShardId, file: StoredFile | None, memory: ManifestMemory
    ) -> ShardManifest | None:
        """What the newest manifest's file holds that a listing showed; None when it showed none.

        Read, unless it is remembered. Raises Corruption as `latest` does.
        """
        if file is None:
            return None
        known = memory.recall(shard_id, file)
        if known is not None:
            return known
        version = layout.parse_shard_manifest_name(file.path.rsplit("/", 1)[-1])
        data = None if version is None else self._bytes(shard_id, version)
        if version is None or data is None:
            return self.latest(shard_id)  # gone since it was listed
        manifest = self._decode(data, shard_id, version)
        if len(data) == file.size_bytes:
            memory.keep(file, manifest)
        return manifest

    def read(self, shard_id: ShardId, version: int) -> ShardManifest:
        """One version. Raises Missing or Corruption."""
        data = self._bytes(shard_id, version)
        if data is None or layout.decode_stopper(data) is not None:
            path = layout.shard_manifest_path(shard_id, version)
            why = "does not exist" if data is None else "was collected"
            raise Missing(f"{self._objects.uri}: shard {shard_id}: {path} {why}")
        return self._decode(data, shard_id, version)

    def digest(self, shard_id: ShardId, version: int) -> str | None:
        """The digest of what is stored as that version; None when nothing is."""
        data = self._bytes(shard_id, version)
        return None if data is None else digest_manifest(data)

    def was_listed(self, current: ShardManifest, generation: int) -> bool | None:
        """Whether the manifest version that got past the generation listed it; None when unknown.

        A flush lists its generation where it raises `current_generation` past it. That version is
        found by halves, so it takes few reads: 10 of 1,000 versions.
        """
        low, high = 1, current.version
        try:
            while low < high:
                middle = (low + high) // 2
                if self._is_past(current.shard_id, middle, generation):
                    high = middle
                else:
                    low = middle + 1
            past = self.read(current.shard_id, low)
            if low > 1:
                self.read(current.shard_id, low - 1)  # Missing: it may be one that was collected
        except MemWalError:
            return None
        if past.current_generation <= generation:
            return None
        return any(listed.generation == generation for listed in past.flushed_generations)

    def _is_past(self, shard_id: ShardId, version: int, generation: int) -> bool:
        try:
            return self.read(shard_id, version).current_generation > generation
        except Missing:
            return False  # collected: lower ones go first

    def versions(self, shard_id: ShardId) -> list[int]:
        """Every stored version, ascending, from a listing."""
        return sorted(version for version, _ in self.list_files(shard_id))

    def list_files(self, shard_id: ShardId) -> Iterator[tuple[int, StoredFile]]:
        """The files of manifests and stoppers, with their versions."""
        for file in self._objects.list(layout.manifest_folder(shard_id)):
            version = layout.parse_shard_manifest_name(file.path.rsplit("/", 1)[-1])
            if version is not None:
                yield version, file

    def commit(self, current: ShardManifest | None, proposed: ShardManifest) -> ShardManifest:
        """Write `proposed` as the version after `current` (None: as the first one).

        Put-if-absent is the compare-and-swap; a name that is taken by exactly our bytes is our
        own create whose reply was lost. Raises LostRace when another writer got there first, also
        when that is so long ago that its manifest was collected and the name is free again; Fenced
        when `proposed` carries an older epoch than `current`, StoreUnavailable when nothing was
        written, OutcomeUnknown when that can't be looked up.
        """
        proposed = self._number(current, proposed)
        data = codec.encode_shard_manifest(proposed)
        try:
            self._create(proposed, data)
        except (AlreadyExists, StoreUnavailable) as error:
            self._check_ours(proposed, data, error)
        return self._finish(current, proposed, data)

    def _number(self, current: ShardManifest | None, proposed: ShardManifest) -> ShardManifest:
        if current is not None and proposed.writer_epoch < current.writer_epoch:
            raise Fenced(
                f"{self._objects.uri}: shard {current.shard_id}: writer epoch "
                f"{proposed.writer_epoch} was superseded by {current.writer_epoch}"
            )
        proposed = replace(proposed, version=1 if current is None else current.version + 1)
        invariants.check_shard_manifest(current, proposed)
        return proposed

    def _create(self, proposed: ShardManifest, data: bytes) -> None:
        path = layout.shard_manifest_path(proposed.shard_id, proposed.version)
        self._objects.put_if_absent(path, data)

    def _check_ours(self, proposed: ShardManifest, data: bytes, error: MemWalError) -> None:
        """Return if our bytes are stored after all; otherwise raise why the commit failed."""
        where = f"{self._objects.uri}: shard {proposed.shard_id}"
        try:
            stored = self._bytes(proposed.shard_id, proposed.version)
        except StoreUnavailable as second:
            raise OutcomeUnknown(
                f"{where}: manifest version {proposed.version} may or may not have been written: "
                f"{error}; then {second}"
            ) from None
        if stored == data:
            return
        if stored is None and isinstance(error, StoreUnavailable):
            raise error
        raise LostRace(
            f"{where}: manifest version {proposed.version} was written by someone else"
        ) from None

    def _finish(
        self, current: ShardManifest | None, proposed: ShardManifest, data: bytes
    ) -> ShardManifest:
        """Check after the put, and before the hint leads there, that the name was never collected.

        A collected manifest's name would be free again. Manifests are collected lowest first, so
        while the version before exists, none above it was collected. Version 1 is never free again.
        """
        shard_id, version = proposed.shard_id, proposed.version
        try:
            if current is None or self._is_stored(shard_id, current.version):
                self._write_hint(shard_id, version)
            elif self._is_late(shard_id, version):
                self._take_back(shard_id, version)
                raise LostRace(
                    f"{self._objects.uri}: shard {shard_id}: manifest version {version} was "
                    "written by someone else, and collected since"
                )
        except StoreUnavailable as error:
            raise OutcomeUnknown(
                f"{self._objects.uri}: shard {shard_id}: manifest version {version} was written, "
                f"but not whether its name had been collected could be looked up: {error}"
            ) from None
        return self._decode(data, shard_id, version)

    def _is_late(self, shard_id: ShardId, version: int) -> bool:
        """Whether a version above what was just put is older than that.

        Where all are newer, ours was the next one, and the one before it was collected since.
        """
        dates = {
            v: file.modified_at_nanos
            for v, file in self.list_files(shard_id)
            if file.size_bytes != layout.STOPPER_BYTES
        }
        if not self._is_stored(shard_id, version):
            return False
        mine = dates.get(version)  # None: the listing lags behind
        return any(v > version and (mine is None or at < mine) for v, at in dates.items())

    def _take_back(self, shard_id: ShardId, version: int) -> None:
        path = layout.shard_manifest_path(shard_id, version)
        for _, why in self._objects.delete([path]).failed:
            raise OutcomeUnknown(
                f"{self._objects.uri}: shard {shard_id}: {path} was written too late, and could "
                f"not be taken back ({why}): delete it, its name was collected long ago"
            )

    def check_unforked(self, shard_id: ShardId, sizes: Mapping[int, int] | None = None) -> None:
        """Raise Corruption for a manifest that leads to none of those above it.

        They are collected lowest first, so a name that is missing below the latest one had all
        below it collected before. What is there all the same was written after that, by a writer
        that stalled for longer than the grace, and goes on from an old state. `sizes` are what a
        listing showed, in bytes by version. Raises StoreUnavailable for one that lags behind.
        """
        if sizes is None:
            sizes = {version: file.size_bytes for version, file in self.list_files(shard_id)}
        lowest = max(sizes, default=0)
        while lowest - 1 in sizes:
            lowest -= 1
        below = [v for v, size in sizes.items() if v < lowest and size != layout.STOPPER_BYTES]
        if not below:
            return
        if self._bytes(shard_id, lowest - 1) is not None:
            raise StoreUnavailable(
                f"{self._objects.uri}: shard {shard_id}: the store's listing misses manifest "
                f"version {lowest - 1}, which is there: it lags behind; run again"
            )
        # Those that others delete meanwhile are gone by now.
        for version in sorted(below, reverse=True):
            if self._is_stored(shard_id, version):
                path = layout.shard_manifest_path(shard_id, version)
                raise Corruption(
                    "MW-M07",
                    f"{self._objects.uri}: shard {shard_id}: {path} (version {version}) leads "
                    f"nowhere, as the latest version is {max(sizes)}: a writer that stalled for "
                    "longer than the grace went on from an old state; close the shard's writers, "
                    "look at what it wrote, and move the file away",
                )

    def _is_stored(self, shard_id: ShardId, version: int) -> bool:
        """Whether a version is there, and was not collected."""
        data = self._bytes(shard_id, version)
        return data is not None and layout.decode_stopper(data) is None

    def hint(self, shard_id: ShardId) -> int | None:
        """The version hint's target; None when there is no hint, or one that can't be read."""
        try:
            path = layout.version_hint_path(shard_id)
            return codec.decode_version_hint(self._objects.get(path, DOCUMENT_BYTES_MAX))
        except (Missing, Corruption):
            return None

    def _latest_by_listing(self, shard_id: ShardId) -> ShardManifest | None:
        versions = self.versions(shard_id)
        return self.read(shard_id, versions[-1]) if versions else None

    def _bytes(self, shard_id: ShardId, version: int) -> bytes | None:
        try:
            path = layout.shard_manifest_path(shard_id, version)
            return self._objects.get(path, DOCUMENT_BYTES_MAX)
        except Missing:
            return None

    def _decode(self, data: bytes, shard_id: ShardId, version: int) -> ShardManifest:
        try:
            return codec.decode_shard_manifest(data, shard_id=shard_id, version=version)
        except MemWalError as error:
            path = layout.shard_manifest_path(shard_id, version)
            raise error.at(f"{self._objects.uri}: shard {shard_id}: {path}") from None

    def _write_hint(self, shard_id: ShardId, version: int) -> None:
        # Best effort by the spec: a reader probes upwards from whatever the hint says.
        try:
            self._objects.put(
                layout.version_hint_path(shard_id), layout.encode_version_hint(version)
            )
        except MemWalError:
            return
