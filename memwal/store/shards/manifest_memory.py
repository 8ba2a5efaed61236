"""A cache of shard manifests, for processes that look at the same table repeatedly.

A manifest never changes, but its name alone does not identify it: the table may have been created
again with the same shard ids. So an entry is matched by everything that a listing says about the
file. It is used only for a file that was listed just now, so the cache can't show more than the
listing does. Deletes don't rely on it: they read the manifests.

For tables of many shards the cache is also kept on disk, one file per table in the user's own
folder. That file is untrusted input like everything stored: its digest has to match, and each
manifest is decoded and checked like one of the table's. A broken file is ignored.
"""

from __future__ import annotations

import os
import threading
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from memwal.errors import MemWalError
from memwal.format import codec, layout
from memwal.model import ShardId, ShardManifest, StoredFile

SHARDS_MIN = 1_000
"""With fewer there is little to gain: reading 1,000 manifests takes a second or two."""

_SWITCH = "MEMWAL_MANIFEST_CACHE"
_BYTES_MAX = 64 * 1024 * 1024
_FILES_MAX = 16
_SUFFIX = ".manifests"


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


# For all tables together, at some 1.5 KB each; beyond that, the least recently used tables go.
_MANIFESTS_MAX = 50_000


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
