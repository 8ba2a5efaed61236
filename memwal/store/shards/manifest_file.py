"""Shard manifests that are remembered on disk, for commands that look at a table of many shards.

One file a table, in a folder of the user's own. It is input as all that is stored: its digest has
to fit, and each manifest is decoded and checked as one of the table's, and answers only for a file
that was listed just now (`manifest_memory.py` beside it). A file that is broken is passed over.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from memwal.errors import MemWalError
from memwal.format import codec, layout
from memwal.model import ShardId, StoredFile
from memwal.store.shards.manifest_memory import ManifestMemory

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
    """What is remembered on disk of one table."""

    def __init__(self, folder: Path | None, *, store: str, uri: str) -> None:
        self._folder = folder
        self._name = blake2b(f"{store}\n{uri}".encode(), digest_size=16).hexdigest() + _SUFFIX

    def load(self, memory: ManifestMemory) -> None:
        """Add what is there and in order."""
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
        """Replace the file by what is known now, and remove the oldest ones beyond so many."""
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
