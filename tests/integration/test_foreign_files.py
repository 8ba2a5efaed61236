"""What a writer, or whoever may write below a table, has read for him by those who may read more.

A generation of another table, a link out of the table's folder, a blob's address: none of them may
bring another's bytes into the table, or into what is read of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import builders
import lance
import pyarrow as pa
import pytest
from builders import Put, Table
from lance.fragment import FragmentMetadata
from lsm_reads import folder_of
from typer.testing import CliRunner, Result

from memwal import cli_app, layout
from memwal.errors import Corruption
from memwal.model import ShardId
from memwal.store.table import LanceTables

pytestmark = pytest.mark.integration

PARTLY, REFUSED, CORRUPT = 6, 5, 8
SECRET = 4_711


def memwal(*arguments: str) -> Result:
    """A command on the local engine."""
    return CliRunner().invoke(cli_app.app, list(arguments))


def merged(table: Table, *flags: str) -> tuple[int, dict[str, dict]]:
    done = memwal("merge", table.uri, "--engine", "local", "--json", *flags)
    (report,) = json.loads(done.stdout)["tables"]
    return done.exit_code, {shard["shard_id"]: shard for shard in report["shards"]}


def generation_of(table: Table, shard: ShardId) -> Path:
    (listed,) = table.stores.shard_manifests.latest(shard).flushed_generations
    return Path(table.uri) / folder_of(shard, listed)


# ---- a generation of another table


def clone(secret: Path, generation: Path) -> None:
    shutil.rmtree(generation)
    lance.dataset(str(secret)).shallow_clone(str(generation), 1)


def link(*parts: str) -> Callable[[Path, Path], None]:
    def put(secret: Path, generation: Path) -> None:
        place = generation.joinpath(*parts)
        for found in sorted(place.parent.glob(place.name)):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
        shutil.copytree(secret, generation, dirs_exist_ok=True)
        for found in sorted(place.parent.glob(place.name)):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
            found.symlink_to(secret / found.relative_to(generation))

    return put


def forged(**entry: object) -> Callable[[Path, Path], None]:
    """A data file's entry in the manifest, changed."""

    def put(secret: Path, generation: Path) -> None:
        dataset = lance.dataset(str(generation))
        (fragment,) = dataset.get_fragments()
        document = fragment.metadata.to_json()
        document["deletion_file"] = None
        document["files"][0] |= entry
        changed = FragmentMetadata.from_json(json.dumps(document))
        operation = lance.LanceOperation.Overwrite(dataset.schema, [changed])
        lance.LanceDataset.commit(str(generation), operation)

    return put


def based(secret: Path, generation: Path) -> None:
    base = lance.DatasetBasePath(str(secret), name="secret")
    lance.dataset(str(generation)).add_bases([base])


TAKEN = {
    "clone": clone,
    "a base path": based,
    "another base": forged(base_id=3),
    "a path out": forged(path="../../../secret/data/x.lance"),
    "an absolute path": forged(path="/etc/passwd"),
    "folder": link(),
    "data": link("data"),
    "versions": link("_versions"),
    "data file": link("data", "*.lance"),
    "manifest": link("_versions", "*.manifest"),
}


@pytest.mark.parametrize("taken", TAKEN)
def test_a_generation_of_another_table_is_never_read(tmp_path: Path, taken: str) -> None:
    public = builders.make_table(tmp_path / "public", rows=range(4), shards=2)
    secret = builders.make_table(tmp_path / "secret", rows=range(4), shards=1)
    bad, good = public.shards
    secret.flush(secret.shards[0], Put([2, 30], SECRET))
    public.flush(bad, Put([2, 30], 100))
    public.flush(good, Put([11], 200))
    place = generation_of(public, bad)
    TAKEN[taken](generation_of(secret, secret.shards[0]), place)

    (listed,) = public.stores.shard_manifests.latest(bad).flushed_generations
    with pytest.raises(Corruption):  # before anything of it is read, on executors too
        LanceTables(public.uri, {}).generation(bad, listed)
    for command in ("read", "verify"):
        done = memwal(command, public.uri)
        assert (done.exit_code, str(SECRET) in done.stdout) == (CORRUPT, False), done.output
        assert f"{bad}" in done.output and place.name in done.output, done.output
    code, shards = merged(public)
    assert (code, shards[good]["outcome"], shards[bad]["outcome"]) == (PARTLY, "done", "failed")
    assert bad in shards[bad]["error"] and place.name in shards[bad]["error"]
    assert merged(public, "--shard", bad)[0] == CORRUPT
    builders.same_rows(public.base_rows(), public.expected({good: 1}), "the base beside it")


@pytest.mark.parametrize("name", ["wal", "manifest", "wal/*.arrow", "manifest/*.binpb"])
def test_a_link_in_a_shard_is_never_read_through(tmp_path: Path, name: str) -> None:
    """What no generation holds yet is read as well, and replayed by a writer."""
    public = builders.make_table(tmp_path / "public", rows=range(4), shards=1)
    secret = builders.make_table(tmp_path / "secret", rows=range(4), shards=1)
    shutil.rmtree(Path(public.uri) / layout.shard_folder(public.shards[0]), ignore_errors=True)
    (shard,) = public.shards = secret.shards
    with secret.writer(shard) as writer:
        row = secret.row(30, SECRET)
        writer.put(pa.Table.from_pylist([row], schema=secret.dataset.schema))
        there, here = (Path(t.uri) / layout.shard_folder(shard) for t in (secret, public))
        shutil.copytree(there, here)
    for found in sorted(here.glob(name)):
        shutil.rmtree(found) if found.is_dir() else found.unlink()
        found.symlink_to(there / found.relative_to(here))
    done = memwal("read", public.uri, "--with-wal")
    assert done.exit_code == CORRUPT, done.output
    assert "symbolic link" in done.output and str(here) in done.output.replace("\n", "")
    rescue = memwal("rescue", public.uri, "--shard", shard, "--idle", "0s", "--yes")
    assert rescue.exit_code == CORRUPT, rescue.output
    assert "symbolic link" in rescue.output
    with pytest.raises(Corruption, match="symbolic link"):  # as an ingest claims it
        LanceTables(public.uri, {}).shard_writer(shard)
