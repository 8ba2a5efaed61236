"""What a writer, or whoever may write below a table, has read for him by those who may read more.

A generation of another table, a link out of the table's folder, a blob's address: none of them may
bring another's bytes into the table, or into what is read of it.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.blob import Blob, blob_array, blob_field
from lance.fragment import FragmentMetadata
from typer.testing import CliRunner, Result

from memwal.cli import app as cli_app
from memwal.errors import Corruption, Refused
from memwal.format import layout
from memwal.model import ShardId
from memwal.read import open_table
from memwal.store.tables.datasets import LanceTables
from tests.read.test_spark_read import DECIDED, LOOKED_UP, through_tasks
from tests.support import builders
from tests.support.builders import KINDS, Put, Table
from tests.support.lsm_reads import folder_of
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration

REFUSED, PARTLY, UNSUPPORTED, CORRUPT = 5, 6, 7, 8
# Long enough to stand in no shard's id by chance.
SECRET = 1_471_147_114


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


Taking = Callable[[Path, Path], None]


def clone(secret: Path, generation: Path) -> None:
    shutil.rmtree(generation)
    lance.dataset(str(secret)).shallow_clone(str(generation), 1)


def link(*parts: str) -> Taking:
    def put(secret: Path, generation: Path) -> None:
        place = generation.joinpath(*parts)
        for found in sorted(place.parent.glob(place.name)):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
        shutil.copytree(secret, generation, dirs_exist_ok=True)
        for found in sorted(place.parent.glob(place.name)):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
            found.symlink_to(secret / found.relative_to(generation))

    return put


def forged(**entry: object) -> Taking:
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
    "another base": forged(base_id=3),
    "a path out": forged(path="../../../secret/data/x.lance"),
    "folder": link(),
    "data": link("data"),
    "data file": link("data", "*.lance"),
    "a base path": based,
    # at night
    "an absolute path": forged(path="/etc/passwd"),
    "versions": link("_versions"),
    "manifest": link("_versions", "*.manifest"),
}
NIGHTLY = [pytest.param(taken, marks=pytest.mark.nightly) for taken in list(TAKEN)[7:]]


@pytest.mark.parametrize("taken", [*list(TAKEN)[:7], *NIGHTLY])
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
    for command in ("read", "verify") if taken == "clone" else ("read",):
        done = memwal(command, public.uri)
        assert (done.exit_code, str(SECRET) in done.stdout) == (CORRUPT, False), done.output
        assert f"{bad}" in done.output and place.name in done.output, done.output
    code, shards = merged(public)
    assert (code, shards[good]["outcome"], shards[bad]["outcome"]) == (PARTLY, "done", "failed")
    assert bad in shards[bad]["error"] and place.name in shards[bad]["error"]
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


# ---- a blob that is an address

INLINE, PACKED, DEDICATED = b"inline", b"p" * 100_000, b"d" * 5_000_000
Values = dict[int, Blob | bytes | None]


def rows_of(values: Values) -> pa.Table:
    schema = pa.schema([*KINDS["int64"].fields, blob_field("blob")])
    return pa.table([pa.array(list(values)), blob_array(list(values.values()))], schema=schema)


def blob_table(uri: str, options: dict[str, str], *bases: str) -> Table:
    """Keys 1 and 2 in the base; `bases` are registered."""
    lance.write_dataset(
        rows_of({1: b"one", 2: None}),
        uri,
        storage_options=options or None,
        data_storage_version="2.2",
        initial_bases=[lance.DatasetBasePath(base) for base in bases] or None,
    ).initialize_mem_wal()
    return Table(uri=uri, kind=KINDS["int64"], options=options)


def put(table: Table, values: Values) -> ShardId:
    """A new shard with one generation."""
    shard = table.add_shard()
    with table.writer(shard) as writer:
        writer.put(rows_of(values))
    return shard


def in_base(table: Table) -> dict[int, dict | None]:
    """The base's descriptors."""
    return {row["k"]: row["blob"] for row in table.dataset.to_table().to_pylist()}


def pending(table: Table, **options: str) -> dict[int, dict | None]:
    """What Spark's tasks read."""
    given = {f"storage.{name}": value for name, value in (table.options or {}).items()}
    return {row["k"]: row["blob"] for row in through_tasks(table.uri, **given, **options)}


def value(data: bytes | None = None, uri: str | None = None, *part: int) -> dict:
    position, size = part or (None, None)
    return {"data": data, "uri": uri, "position": position, "size": size}


def local_secret(tmp_path: Path) -> tuple[Table, str, bytes]:
    (tmp_path / "media").mkdir()
    (tmp_path / "media-evil").mkdir()
    (tmp_path / "media-evil" / "file").write_bytes(b"SECRET")
    table = blob_table(str(tmp_path / "t"), {}, str(tmp_path / "media"))
    return table, (tmp_path / "media-evil" / "file").as_uri(), b"SECRET"


def check_refused(table: Table, address: str, secret: bytes) -> None:
    """A row that leads there waits, by whatever way it is read; others are merged."""
    good = put(table, {10: INLINE})
    bad = put(table, {2: b"fine", 3: Blob.from_uri(address), 4: Blob.from_uri(address, 1, 2)})
    with pytest.raises(Refused, match=f"{bad}, generation 1 .*outside of the table's folder"):
        open_table(table.uri, storage_options=table.options).read().read_all()
    for way in (DECIDED, LOOKED_UP):
        with pytest.raises(Refused, match=bad):
            pending(table, **way)
    flags = [f"--storage-option={name}={v}" for name, v in (table.options or {}).items()]
    done = memwal("read", table.uri, *flags)
    assert done.exit_code == REFUSED and bad in done.output
    assert memwal("read", table.uri, "--columns", "k", *flags).exit_code == 0
    code, shards = merged(table, *flags)
    assert (code, shards[good]["outcome"], shards[bad]["outcome"]) == (PARTLY, "done", "refused")
    assert merged(table, "--shard", bad, *flags)[0] == REFUSED
    assert set(in_base(table)) == {1, 2, 10}
    kept = table.dataset.read_blobs("blob", indices=[0, 1, 2])
    assert secret not in [data for _, data in kept]
    put(table, {3: b"anew", 4: None})  # does not help the shard, which is in order by itself
    assert merged(table, "--shard", bad, *flags)[0] == REFUSED


@pytest.mark.parametrize("large", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_an_address_on_this_host_is_not_followed(
    tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:  # streamed
        monkeypatch.setattr("memwal.jobs.merge.store._IN_MEMORY_BYTES_MAX", 0)
    check_refused(*local_secret(tmp_path))


def test_an_address_under_the_name_of_an_own_blob_is_corruption(tmp_path: Path) -> None:
    """As it is left in a file of which one byte was changed, an address's kind."""
    table, uri, secret = local_secret(tmp_path)
    shard = put(table, {3: Blob.from_uri(uri)})
    generation = generation_of(table, shard)
    (file,) = (generation / "data").glob("*.lance")
    data = file.read_bytes()
    (kind,) = [at for at in range(8) if data[at] == 3]
    file.write_bytes(data[:kind] + b"\0" + data[kind + 1 :])
    (row,) = lance.dataset(str(generation)).to_table().to_pylist()
    assert (row["blob"]["kind"], row["blob"]["blob_uri"]) == (0, uri)
    done = memwal("read", table.uri)
    assert (done.exit_code, shard in done.output) == (CORRUPT, True), done.output
    assert "both bytes and an address" in done.output.replace("\n", " ")
    assert merged(table)[0] == CORRUPT
    assert secret not in [data for _, data in table.dataset.read_blobs("blob", indices=[0, 1])]


@pytest.mark.nightly
def test_an_address_in_another_bucket_is_not_followed(s3_server: S3Server) -> None:
    bucket, options = s3_server.make_bucket(), s3_server.storage_options
    for path, data in (("", b""), ("/t/private", b"SECRET")):
        url = f"{s3_server.endpoint}/{bucket}-evil{path}"
        urllib.request.urlopen(urllib.request.Request(url, data=data, method="PUT")).close()
    table = blob_table(f"s3://{bucket}/t", options, f"s3://{bucket}/media")
    check_refused(table, f"s3://{bucket}-evil/t/private", b"SECRET")


HONEST = {
    "file": ("media/a%20b", ()),
    "part": ("media/a%20b", (1, 3)),
    "gone": ("media/deep/nothing-there", ()),
}


@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_what_may_be_referred_to_comes_out_as_the_reference_it_was(
    tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And bytes stay bytes, wherever pylance keeps them."""
    if large:
        monkeypatch.setattr("memwal.jobs.merge.store._IN_MEMORY_BYTES_MAX", 0)
    media = tmp_path / "media"
    media.mkdir()
    (media / "a b").write_bytes(b"MEDIA")
    table = blob_table(str(tmp_path / "t"), {}, str(media))
    values: Values = {10: INLINE, 11: PACKED, 12: DEDICATED, 13: None, 14: b""}
    wanted = {key: data if data is None else value(data) for key, data in values.items()}
    for key, (path, part) in enumerate(HONEST.values(), 20):
        uri = f"{tmp_path.as_uri()}/{path}"
        values[key] = Blob.from_uri(uri, *part)
        wanted[key] = value(None, uri, *part)
    put(table, values)
    wanted |= {1: value(b"one"), 2: None}

    def read() -> dict[int, dict | None]:
        found = open_table(table.uri).read().read_all()
        return {row["k"]: row["blob"] for row in found.to_pylist()}

    assert read() == wanted
    assert pending(table, **DECIDED) == pending(table, **LOOKED_UP) == wanted
    done = json.loads(memwal("read", table.uri, "--json", "--filter", "k >= 20").stdout)
    uri = f"{tmp_path.as_uri()}/media/a%20b"
    assert done["tables"][0]["rows"][:2] == [
        {"k": 20, "blob": {"uri": uri}},
        {"k": 21, "blob": {"uri": uri, "position": 1, "size": 3}},
    ]
    assert merged(table)[0] == 0
    kinds = {key: found and found["kind"] for key, found in in_base(table).items()}
    assert [kinds[key] for key in (10, 11, 12, 13, 14)] == [0, 1, 2, None, 0]
    assert [kinds[key] for key in (20, 21, 22)] == [3, 3, 3]
    assert read() == pending(table) == wanted
    place = list(in_base(table)).index(21)
    assert table.dataset.read_blobs("blob", indices=[place])[0][1] == b"EDI"
    memwal("compaction", table.uri, "--engine", "local")
    assert read() == wanted


def test_a_file_in_the_table_is_read_and_can_not_be_merged(tmp_path: Path) -> None:
    """Lance refers to none from a merge: the message says what helps, and it does."""
    table = blob_table(str(tmp_path / "t"), {})
    uri = (tmp_path / "t" / "media" / "file").as_uri()
    shard = put(table, {3: Blob.from_uri(uri)})
    assert pending(table)[3] == value(None, uri)
    code, shards = merged(table)
    assert (code, "dataset.add_bases" in shards[shard]["error"]) == (REFUSED, True)
    table.dataset.add_bases([lance.DatasetBasePath(str(tmp_path / "t" / "media"))])
    assert merged(table)[0] == 0
    assert pending(table)[3] == value(None, uri)


def test_the_bases_own_addresses_are_given_and_not_followed(tmp_path: Path) -> None:
    """Who may commit has put them there."""
    table, uri, secret = local_secret(tmp_path)
    lance.write_dataset(
        rows_of({7: Blob.from_uri(uri)}),
        table.uri,
        mode="append",
        allow_external_blob_outside_bases=True,
    )
    done = memwal("read", table.uri, "--json")
    assert done.exit_code == 0 and uri in done.stdout
    assert secret.decode() not in done.stdout
    assert pending(table)[7] == value(None, uri)


def test_a_blob_inside_another_column_is_not_read(tmp_path: Path) -> None:
    _, secret, _ = local_secret(tmp_path)
    inside = pa.struct([blob_field("b"), pa.field("n", pa.int64())])
    schema = pa.schema([*KINDS["int64"].fields, pa.field("s", inside)])

    def row(blob: Blob | bytes) -> pa.Table:
        parts = pa.StructArray.from_arrays([blob_array([blob]), [1]], fields=list(inside))
        return pa.Table.from_arrays([pa.array([1]), parts], schema=schema)

    table = Table(uri=str(tmp_path / "nested"), kind=KINDS["int64"])
    lance.write_dataset(row(b"x"), table.uri, data_storage_version="2.2").initialize_mem_wal()
    with table.writer(table.add_shard()) as writer:
        writer.put(row(Blob.from_uri(secret)))
    done = memwal("read", table.uri)
    assert (done.exit_code, "blobs inside" in done.output) == (UNSUPPORTED, True), done.output
    assert merged(table)[0] == UNSUPPORTED
    assert memwal("read", table.uri, "--columns", "k").exit_code == 0


def test_a_wal_with_blobs_is_checked_and_rescued(tmp_path: Path) -> None:
    """Its rows can't be read, for pylance keeps parts of them in files of the next generation."""
    table = blob_table(str(tmp_path / "t"), {})
    shard = table.add_shard()
    with table.writer(shard) as writer:
        writer.put(rows_of({3: INLINE, 4: DEDICATED}))
        copy = tmp_path / "copy"
        shutil.copytree(table.uri, copy)
    for command in ("verify", "inspect wal"):
        done = memwal(*command.split(), str(copy))
        assert done.exit_code == 0, done.output
    done = memwal("read", str(copy), "--with-wal")
    assert (done.exit_code, shard in done.output) == (UNSUPPORTED, True)
    assert memwal("rescue", str(copy), "--idle", "0s", "--yes").exit_code == 0
    copied = Table(uri=str(copy), kind=table.kind)
    assert pending(copied)[4] == value(DEDICATED)


@pytest.mark.parametrize("name", ["*.blob", "*/*.blob"])
def test_a_link_to_a_blobs_file_is_not_followed(tmp_path: Path, name: str) -> None:
    table, secret, _ = local_secret(tmp_path)
    shard = put(table, {3: DEDICATED})
    (file,) = (generation_of(table, shard) / "data").rglob("*.blob")
    if "/" in name:
        file.unlink()
        file.symlink_to(secret.removeprefix("file://"))
    else:
        moved = tmp_path / "elsewhere"
        file.parent.rename(moved)
        file.parent.symlink_to(moved)
    assert memwal("read", table.uri).exit_code == CORRUPT
    assert merged(table)[0] == CORRUPT
