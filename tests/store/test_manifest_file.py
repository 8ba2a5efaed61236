"""What is remembered of shard manifests on disk: an own folder, checked when it is read."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from memwal.format import codec, layout
from memwal.model import ShardId, ShardManifest, StoredFile
from memwal.store.shards.manifests import (
    MEMORIES,
    ManifestFile,
    ManifestMemory,
    find_cache_folder,
)
from memwal.store.tables.view import StoredViews
from tests.support import builders
from tests.support.builders import Put
from tests.support.s3server import S3Server

ONE = ShardId("11111111-1111-4111-8111-111111111111")


def manifest(version: int = 3) -> ShardManifest:
    made = ShardManifest(shard_id=ONE, version=version, writer_epoch=1, current_generation=1)
    data = codec.encode_shard_manifest(made)
    return codec.decode_shard_manifest(data, shard_id=ONE, version=version)


FILE = StoredFile(
    path=layout.shard_manifest_path(ONE, 3),
    size_bytes=len(manifest().raw),
    modified_at_nanos=5,
    etag='"a"',
)


def stored(folder: Path) -> ManifestFile:
    memory = ManifestMemory()
    memory.keep(FILE, manifest())
    found = ManifestFile(folder, store="s3", uri="s3://b/t")
    found.save(memory)
    assert memory.unsaved == 0
    return found


def loaded(file: ManifestFile) -> int:
    memory = ManifestMemory()
    file.load(memory)
    return len(memory)


def test_what_was_stored_comes_back_for_that_table_only(tmp_path: Path) -> None:
    file, memory = stored(tmp_path), ManifestMemory()
    file.load(memory)
    assert memory.recall(ONE, FILE) == manifest()
    assert memory.unsaved == 0
    assert loaded(ManifestFile(tmp_path, store="s3", uri="s3://b/other")) == 0
    assert loaded(ManifestFile(tmp_path, store="another", uri="s3://b/t")) == 0
    assert loaded(ManifestFile(None, store="s3", uri="s3://b/t")) == 0
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def signed(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode() + b"\n" + body


def entry(**changed: Any) -> bytes:
    fields = {
        "shard": ONE,
        "version": 3,
        "size": 1,
        "at": 5,
        "etag": "a",
        "raw": b64encode(manifest().raw).decode(),
        **changed,
    }
    return signed(json.dumps({"format": 1, "manifests": [list(fields.values())]}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 100,
        entry().replace(b'"a"', b'"b"'),
        entry().replace(ONE.encode(), ONE.replace("1", "2").encode()),
        signed(b"{}"),
        signed(b"[" * 100_000),
        signed(b'{"format": 2, "manifests": [1]}'),
        signed(b'{"format": 1, "manifests": [[]]}'),
        entry(shard="../../x"),
        entry(version=4),
        entry(version=-1),
        entry(raw=b64encode(b"\xff\xff").decode()),
    ],
)
def test_a_broken_file_is_passed_over(tmp_path: Path, data: bytes) -> None:
    file = stored(tmp_path)
    (path,) = tmp_path.iterdir()
    assert loaded(file) == 1
    path.write_bytes(data)
    assert loaded(file) == 0
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(entry())
    assert loaded(file) == 0


def test_only_so_many_tables_are_kept(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.manifests"
        path.write_bytes(b"")
        os.utime(path, ns=(number, number))
    other = tmp_path / "of another program"
    other.write_bytes(b"")
    os.utime(other, ns=(0, 0))
    assert loaded(stored(tmp_path)) == 1
    assert other.exists()
    other.unlink()
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 16
    assert "0.manifests" not in names


def test_the_folder_is_the_users_own_or_none(tmp_path: Path) -> None:
    found = find_cache_folder({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found == tmp_path / "cache" / "memwal"
    assert found.stat().st_mode & 0o777 == 0o700
    given = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for switch in ("off", "OFF", "0", "false"):
        assert find_cache_folder({**given, "MEMWAL_MANIFEST_CACHE": switch}) is None
    found.chmod(0o755)
    assert find_cache_folder(given) is None
    found.rmdir()
    found.symlink_to(tmp_path)
    assert find_cache_folder(given) is None
    (tmp_path / "file").write_bytes(b"")
    assert find_cache_folder({"XDG_CACHE_HOME": str(tmp_path / "file")}) is None


@pytest.mark.integration
def test_a_later_process_reads_what_is_new(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    uri, options = f"s3://{s3_server.make_bucket()}/t", s3_server.storage_options
    table = builders.make_table(uri, rows=range(3), shards=2, options=options)
    for number, shard in enumerate(table.shards):
        table.flush(shard, Put([number], number))

    def count_reads() -> int:
        """Of a view, as another process would get it: its memory is empty."""
        stores = table.stores
        MEMORIES.recall(stores.objects.store, stores.uri).forget_others(())
        view = StoredViews(stores.objects, stores.tables, remembered_min=2).table()
        assert view == table.stores.views.table()
        return stores.objects.counts.get - 1  # the version's own manifest

    assert count_reads() == 2
    assert count_reads() == 0
    table.flush(table.shards[0], Put([7], 7))
    assert count_reads() == 1
    (path,) = (tmp_path / "memwal").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert count_reads() == 2
