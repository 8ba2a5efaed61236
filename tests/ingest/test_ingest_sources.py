from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping

import boto3
import lance
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from memwal.errors import NotATable, Unsupported, Usage
from memwal.ingest.sources.columns import SourceColumns
from memwal.ingest.sources.files import SourceFiles, open_system
from memwal.ingest.sources.text_files import convert_text
from memwal.rows.pairs import STRICT
from tests.support.stores import make_address

pytestmark = pytest.mark.integration

ROWS = pa.table({"id": pa.array(range(95), pa.int64()), "note": [f"n{i}" for i in range(95)]})
TYPES = {"id": pa.int64(), "note": pa.string()}


def read(chunks: Iterable[pa.Table], types: Mapping[str, pa.DataType] = TYPES) -> pa.Table:
    """The rows of all chunks, with their values."""
    return pa.concat_tables([convert_text(chunk, types, STRICT, 1)[0] for chunk in chunks])


def write(folder, kind: str) -> str:
    path = folder / f"rows.{kind}"
    match kind:
        case "parquet":
            pq.write_table(ROWS, path, row_group_size=17)
        case "arrow":
            with pa.ipc.new_file(path, ROWS.schema) as out:
                out.write_table(ROWS, max_chunksize=13)
        case "arrows":
            with pa.ipc.new_stream(path, ROWS.schema) as out:
                out.write_table(ROWS, max_chunksize=13)
        case "feather":
            feather.write_feather(ROWS, path, chunksize=20)
        case "csv":
            pacsv.write_csv(ROWS, path)
        case "csv.gz":
            with pa.CompressedOutputStream(path, "gzip") as out:
                pacsv.write_csv(ROWS, out)
        case "lance":
            lance.write_dataset(ROWS, path, max_rows_per_file=30)
    return str(path)


@pytest.mark.parametrize(
    "kind", ["parquet", "arrow", "arrows", "feather", "csv", "csv.gz", "lance"]
)
def test_chunks_are_the_same_from_wherever_reading_starts(tmp_path, kind) -> None:
    files = SourceFiles({}, SourceColumns(types=TYPES))
    [file] = files.find([write(tmp_path, kind)])
    assert files.read_schema(file).names == ["id", "note"]
    assert files.count_rows(file) in (95, None if file.format in ("csv", "arrow") else 95)
    chunks = list(files.read_chunks(file, 10))
    assert [len(chunk) for chunk in chunks] == [*[10] * 9, 5]
    assert read(chunks).select(["id", "note"]).equals(ROWS)
    for first in range(0, 91, 10):
        later = list(files.read_chunks(file, 10, first_row=first, columns=["note"]))
        assert later[0].column_names == ["note"]
        assert read(later)["note"].to_pylist() == ROWS["note"].to_pylist()[first:]
    assert list(files.read_chunks(file, 10, first_row=95)) == []


def test_a_text_with_newlines_over_several_blocks_of_csv(tmp_path) -> None:
    texts = ["\n".join(f"{n},{part}" for part in range(n % 40)) for n in range(80_000)]
    rows = pa.table({"id": range(len(texts)), "text": texts})
    path = tmp_path / "long.csv"
    pacsv.write_csv(rows, path)
    assert path.stat().st_size > 12_000_000  # three blocks
    files = SourceFiles({}, SourceColumns(types={"text": pa.string()}))
    (file,) = files.find([str(path)])
    types = {"id": pa.int64(), "text": pa.string()}
    assert read(files.read_chunks(file, 30_000), types).equals(rows)


def test_csv_tells_null_from_an_empty_text(tmp_path) -> None:
    rows = pa.table(
        {
            "id": pa.array([1, 2, None, 4, 5], pa.int64()),
            "text": ["", None, "NA", "null", 'a"b'],
            "size": [1.5, None, float("inf"), 0.0, -1.0],
            "raw": [b"", None, b"x", b"NULL", b"y"],
        }
    )
    path = tmp_path / "nulls.csv"
    pacsv.write_csv(rows, path)
    types = dict(zip(rows.schema.names, rows.schema.types, strict=True))
    files = SourceFiles({}, SourceColumns(types=types))
    (file,) = files.find([str(path)])
    assert read(files.read_chunks(file, 10), types).equals(rows)


def test_csv_of_what_is_not_a_number(tmp_path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("size,text\nnan,nan\n")
    types = {"size": pa.float64(), "text": pa.string()}
    files = SourceFiles({}, SourceColumns(types=types))
    (file,) = files.find([str(path)])
    (row,) = read(files.read_chunks(file, 10), types).to_pylist()
    assert (str(row["size"]), row["text"]) == ("nan", "nan")


def test_a_folder_by_name_without_what_is_hidden(tmp_path) -> None:
    for name in (
        "b/2.parquet",
        "b/1.pq",
        "a.csv",
        "_SUCCESS",
        ".hidden.csv",
        "_old/x.csv",
        "n.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("id,note\n1,x\n")
    files = SourceFiles({})
    found = files.find([str(tmp_path), str(tmp_path / "a.csv")])
    assert [(f.uri.removeprefix(f"{tmp_path}/"), f.format) for f in found] == [
        ("a.csv", "csv"),
        ("b/1.pq", "parquet"),
        ("b/2.parquet", "parquet"),
    ]
    [forced] = files.find([str(tmp_path / "n.txt")], "csv")
    assert forced.format == "csv"


def test_what_is_no_source(tmp_path) -> None:
    files = SourceFiles({})
    with pytest.raises(Usage, match="no such source"):
        files.find([str(tmp_path / "missing.csv")])
    with pytest.raises(Usage, match="holds no source file"):
        files.find([str(tmp_path)])
    (tmp_path / "n.txt").write_text("x")
    with pytest.raises(Usage, match="give --format"):
        files.find([str(tmp_path / "n.txt")])
    (tmp_path / "torn.parquet").write_text("PAR1")
    [torn] = files.find([str(tmp_path / "torn.parquet")])
    with pytest.raises(Usage, match="can't be read as parquet"):
        files.read_schema(torn)
    with pytest.raises((Usage, NotATable)):
        files.find([str(tmp_path)], "lance")


def test_a_lance_source_stays_at_its_version(tmp_path) -> None:
    uri = write(tmp_path, "lance")
    files = SourceFiles({})
    [file] = files.find([uri])
    lance.write_dataset(ROWS, uri, mode="append")
    assert files.count_rows(file) == 95
    [later] = files.find([uri])
    assert later != file


def test_sources_on_s3(make_s3_uri, s3_server) -> None:
    uri = make_s3_uri()
    bucket = uri.split("/")[2]
    options = s3_server.storage_options
    client = boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint"],
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
        region_name=options["aws_region"],
    )
    out = io.BytesIO()
    pq.write_table(ROWS, out)
    client.put_object(Bucket=bucket, Key="in/rows.parquet", Body=out.getvalue())
    files = SourceFiles(options)
    [file] = files.find([f"s3://{bucket}/in"])
    assert file.uri == f"s3://{bucket}/in/rows.parquet"
    assert pa.concat_tables(files.read_chunks(file, 50)).equals(ROWS)
    assert file.etag == hashlib.md5(out.getvalue()).hexdigest()
    assert files.read_digest(file) == f"sha256:{hashlib.sha256(out.getvalue()).hexdigest()}"
    client.put_object(Bucket=bucket, Key="in/_old/x.parquet", Body=b"")
    for pattern in ("in/*.parquet", "i*/r[aeiou]ws.*", "**/*.parquet"):
        assert files.find([f"s3://{bucket}/{pattern}"]) == [file]
    with pytest.raises(Usage, match="nothing matches"):
        files.find([f"s3://{bucket}/in/*.csv"])


@pytest.mark.parametrize("given", ["in/a\udcff.csv", "in", "in/*.csv"])
def test_a_name_that_is_no_text_is_a_fault_of_the_request(tmp_path, given) -> None:
    """pyarrow can't open it, and it can't be said in a report."""
    (tmp_path / "in").mkdir()
    for name in ("a\udcff.csv", "b.csv"):
        (tmp_path / "in" / name).write_text("id\n1\n")
    with pytest.raises(
        Usage, match=r"a\\.*\.csv' is not UTF-8|a\\.*\.csv': the name is not UTF-8"
    ) as refused:
        SourceFiles({}).find([str(tmp_path / given)])
    assert str(refused.value).isascii()


@pytest.mark.nightly
def test_sources_on_azure(request, tmp_path) -> None:
    place = make_address(request, "az", "in")
    rows = tmp_path / "rows.parquet"
    pq.write_table(ROWS, rows)
    place.objects().put("deep/rows.parquet", rows.read_bytes())
    files = SourceFiles(place.storage_options)
    container = place.uri.split("/")[2]
    for uri in (place.uri, f"abfss://{container}@devstoreaccount1.dfs.core.windows.net/in"):
        [file] = files.find([uri])
        assert file.uri == f"{uri}/deep/rows.parquet"
        assert pa.concat_tables(files.read_chunks(file, 10)).equals(ROWS)
    lance.write_dataset(ROWS, f"{place.uri}/lance", storage_options=place.storage_options)
    [file] = files.find([f"{place.uri}/lance"])
    assert (file.format, files.count_rows(file)) == ("lance", 95)
    with pytest.raises(Usage, match="no such source"):
        files.find([f"az://{container}/nowhere"])


def test_a_service_account_among_the_options_is_not_passed_over() -> None:
    with pytest.raises(Unsupported, match="GOOGLE_APPLICATION_CREDENTIALS"):
        SourceFiles({"google_service_account": "key.json"}).find(["gs://bucket/in"])


def test_buckets_of_one_name_in_two_clouds_are_two() -> None:
    files = SourceFiles({"region": "eu-west-1", "google_storage_token": "t"})
    found = [files._system(f"{scheme}://lake/in")[0].type_name for scheme in ("s3", "gs", "s3")]
    assert found == ["s3", "gcs", "s3"]


def test_a_store_that_pyarrow_does_not_know_is_not_taken_for_another() -> None:
    with pytest.raises(Unsupported, match="oss:// sources can't be read: pyarrow has no such"):
        open_system("oss", {"account_name": "lake"})
