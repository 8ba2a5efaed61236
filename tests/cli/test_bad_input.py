"""What the command line makes of bad input: a clear message, the right code, an untouched table."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import lance
import pytest

from memwal.cli import main
from memwal.errors import Corruption, StoreUnavailable
from memwal.format import layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.model import ShardId, ShardStatus
from memwal.read.spark import MemWalDataSource
from memwal.run.stores import TESTED_LANCE_MAJORS, open_stores
from memwal.store.objects.base import StoreLimits
from tests.support import builders
from tests.support.nursery import run_memwal
from tests.support.s3server import S3Server

pytestmark = pytest.mark.integration

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
STRANGE = "00000000-0000-4000-8000-000000000000"
RUN_SECONDS_MAX = 120
Change = Callable[[bytes], bytes]
OK, USAGE, GUARD, PARTLY, UNSUPPORTED, CORRUPT = 0, 2, 5, 6, 7, 8


# ---- running the command


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of one run."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def document(self) -> dict[str, Any]:
        """Stdout as the one JSON document that it has to be."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def errors(self) -> str:
        """Every error text in the document."""
        document = self.document
        tables = document["tables"]
        shards = [shard for table in tables for shard in table.get("shards", ())]
        return "\n".join(
            error
            for part in (document, *tables, *shards)
            if (error := part.get("error")) is not None
        )


def run(*arguments: str | Path, folder: Path, **environment: str) -> Ran:
    """Run `memwal` where no configuration of the machine's reaches it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MEMWAL_", "AWS_"))}
    done = run_memwal(
        *arguments,
        cwd=folder,
        env={**kept, "AWS_EC2_METADATA_DISABLED": "true", **environment},
        timeout=RUN_SECONDS_MAX,
    )
    return Ran(code=done.returncode, out=done.stdout, err=done.stderr)


def listing(table: Path) -> dict[str, tuple[int, int]]:
    """Every file's size and time, and every folder; the lease's own folder apart."""
    return {
        str(path.relative_to(table)): (
            (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else (0, 0)
        )
        for path in sorted(table.rglob("*"))
        if layout.MAINTENANCE not in path.relative_to(table).parts
    }


def check(
    *arguments: str | Path,
    code: int,
    says: Iterable[str],
    table: Path,
    job: str = "merge",
    plain: bool = False,
    **environment: str,
) -> Ran:
    """Run with `--json` (and, where `plain`, without), and check all that has to hold of both."""
    command = [job, *arguments, *(["--engine", "local"] if job == "merge" else [])]
    before = listing(table)
    folder = table.parent

    ran = run(*command, "--json", folder=folder, **environment)
    for_people = run(*command, folder=folder, **environment) if plain else None

    for one in filter(None, (ran, for_people)):
        assert one.code == code, one.text
        assert "Traceback" not in one.text, one.text
    for part in says:
        assert part in ran.errors
        assert part in ran.err
        assert for_people is None or part in for_people.text
    assert ran.document["job"] == job
    assert ran.document["outcome"] in ("failed", "refused")
    assert listing(table) == before
    return ran


# ---- tables to break


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with two pending generations, to be copied."""
    table = builders.make_table(tmp_path_factory.mktemp("pristine") / "table", rows=range(3))
    table.shards.clear()
    table.add_shard(SHARD)
    table.flush(SHARD, builders.Put([1, 2], 10))
    table.flush(SHARD, builders.Put([5], 20), builders.Delete([0]))
    return Path(table.uri)


def copied(pristine: Path, to: Path) -> Path:
    return Path(shutil.copytree(pristine, to))


@pytest.fixture
def table(pristine: Path, tmp_path: Path) -> Path:
    return copied(pristine, tmp_path / "table")


def latest_table_manifest(table: Path) -> Path:
    version = lance.dataset(str(table)).version
    return table / "_versions" / layout.table_manifest_names(version)[0]


def latest_shard_manifest(table: Path) -> Path:
    version = open_stores(str(table), {}).shard_manifests.versions(SHARD)[-1]
    return table / layout.shard_manifest_path(SHARD, version)


def rewrite(file: Path, change: Change) -> None:
    file.write_bytes(change(file.read_bytes()))


def generations_of(table: Path) -> int:
    """How far the shard is merged."""
    stores = open_stores(str(table), {})
    state = stores.table_manifests.read(stores.tables.base().version).mem_wal
    assert state is not None
    return state.merged.get(SHARD, 0)


# ---- addresses


@pytest.mark.parametrize("job", ["merge", "status"])
def test_no_such_table(table: Path, job: str) -> None:
    missing = table.parent / "nothing"
    check(
        missing, code=USAGE, says=[str(missing), "no such table"], table=table, job=job, plain=True
    )
    assert not missing.exists()


@pytest.mark.parametrize("job", ["merge", "status"])
def test_a_folder_that_is_no_lance_table(tmp_path: Path, job: str) -> None:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_text("x")
    check(folder, code=USAGE, says=[str(folder), "not a Lance table"], table=folder, job=job)


@pytest.mark.parametrize("job", ["merge", "status"])
def test_a_file_is_no_table(tmp_path: Path, job: str) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    check(file, code=USAGE, says=[str(file), "no such table"], table=tmp_path, job=job)


def test_a_table_without_a_mem_wal(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    lance.write_dataset(builders.pa.table({"id": [1]}), str(plain))
    says = [str(plain), "has no MemWAL index", f"`memwal init {plain}`"]
    check(plain, code=USAGE, says=says, table=plain, job="quiesce")


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("ftp://bucket/table", UNSUPPORTED, "ftp://"),
        ("s3:///table", USAGE, "bucket"),
        ("s3://key:secret@bucket/table", USAGE, "storage options"),
        ("", USAGE, "address is empty"),
        ("./a\udcff", USAGE, "'./a\\udcff': the name is not UTF-8"),
    ],
)
def test_addresses_that_lead_nowhere(table: Path, address: str, code: int, says: str) -> None:
    check(address, code=code, says=[says], table=table)


# ---- object stores


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """The address of a server that answers everything with one status."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def options(endpoint: str) -> list[str]:
    pairs = {
        "aws_endpoint": endpoint,
        "allow_http": "true",
        "aws_access_key_id": "AKIA-NOT-SHOWN",
        "aws_secret_access_key": "secret-not-shown",
        "aws_region": "us-east-1",
    }
    return [part for k, v in pairs.items() for part in ("--storage-option", f"{k}={v}")]


def test_wrong_credentials(table: Path) -> None:
    body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no</Message></Error>"
    with answering(403, body) as endpoint:
        uri = "s3://bucket/some/table"
        ran = check(uri, *options(endpoint), code=USAGE, says=[uri], table=table, plain=True)
    assert "not-shown" not in ran.text.lower()


def test_an_endpoint_that_nobody_answers_at() -> None:
    """With short retries, which the command has no option for: its own take up to half a minute."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        stores = open_stores(
            "s3://bucket/some/table",
            {
                "aws_endpoint": endpoint,
                "allow_http": "true",
                "aws_access_key_id": "AKIA-NOT-SHOWN",
                "aws_secret_access_key": "secret-not-shown",
            },
            limits=StoreLimits(retry_seconds_max=0.5),
        )
        with pytest.raises(StoreUnavailable, match="s3://bucket/some/table") as found:
            stores.views.table()
    assert found.value.exit_code == 1
    assert "not-shown" not in str(found.value).lower()


def test_a_bucket_and_a_table_that_are_not_there(table: Path, s3_server: S3Server) -> None:
    there, missing = f"s3://{s3_server.make_bucket()}/table", "s3://no-such-bucket/table"
    for uri in (there, missing):
        check(uri, *options(s3_server.endpoint), code=USAGE, says=[uri], table=table)


# ---- table manifests


@pytest.mark.parametrize("job", ["merge", "status"])
def test_broken_table_manifests(pristine: Path, tmp_path: Path, job: str) -> None:
    changes: dict[str, Change] = {
        "empty": lambda data: b"",
        "torn": lambda data: data[: len(data) // 2],
        "garbage": lambda data: b"\x5a" * len(data),
    }
    tables = [copied(pristine, tmp_path / name) for name in changes]
    for table, change in zip(tables, changes.values(), strict=True):
        rewrite(latest_table_manifest(table), change)

    ran = check(*tables, code=CORRUPT, says=map(str, tables), table=tmp_path, job=job, plain=True)

    for table, found in zip(tables, ran.document["tables"], strict=True):
        assert (found["outcome"], found["table"]) == ("failed", str(table))
        assert str(table) in found["error"]


@pytest.mark.parametrize("job", ["merge", "status"])
def test_a_table_manifest_that_is_torn_before_its_end(table: Path, job: str) -> None:
    rewrite(latest_table_manifest(table), lambda data: data[: len(data) - 60] + data[-16:])
    check(table, code=CORRUPT, says=[str(table)], table=table, job=job)


# ---- shard manifests


def forged(change: Callable[[pb.ShardManifest], object]) -> Change:
    def rewritten(data: bytes) -> bytes:
        message = pb.ShardManifest.FromString(data)
        change(message)
        return message.SerializeToString()

    return rewritten


def with_path(path: str) -> Change:
    return forged(lambda m: setattr(m.flushed_generations[0], "path", path))


BROKEN_SHARDS: dict[str, tuple[Change, str]] = {
    "empty": (lambda data: b"", "is empty"),
    "torn": (lambda data: data[: len(data) // 2], "not a ShardManifest message"),
    "garbage": (lambda data: b"\xff" * len(data), "not a ShardManifest message"),
    "climbing path": (with_path("../../etc"), "'../../etc'"),
    "absolute path": (with_path("/etc/passwd"), "'/etc/passwd'"),
    "another's path": (with_path("0a1b2c3d_gen_9"), "does not belong to generation 1"),
    "absurd path": (with_path("0a1b2c3d_gen_" + "1" * 5000), "does not have the form"),
    "listed twice": (
        forged(lambda m: m.flushed_generations.add(generation=2, path="0a1b2c3d_gen_2")),
        "lists generation 2 twice",
    ),
    "another shard's": (
        forged(lambda m: setattr(m.shard_id, "uuid", UUID(STRANGE).bytes)),
        f"belongs to shard {STRANGE}",
    ),
    "another version's": (forged(lambda m: setattr(m, "version", 77)), "holds version 77"),
}


def test_broken_shard_manifests(pristine: Path, tmp_path: Path) -> None:
    """One run over a table for each case: none is merged, none stops another."""
    tables = [copied(pristine, tmp_path / name.replace(" ", "-")) for name in BROKEN_SHARDS]
    for table, (change, _) in zip(tables, BROKEN_SHARDS.values(), strict=True):
        rewrite(latest_shard_manifest(table), change)

    ran = check(*tables, code=CORRUPT, says=[SHARD], table=tmp_path, plain=True)

    for table, (_, says), found in zip(
        tables, BROKEN_SHARDS.values(), ran.document["tables"], strict=True
    ):
        assert (found["outcome"], found["table"]) == ("failed", str(table))
        for part in (str(table), SHARD, latest_shard_manifest(table).name, says):
            assert part in found["error"]
        assert generations_of(table) == 0


def test_a_broken_shard_in_status(table: Path) -> None:
    rewrite(latest_shard_manifest(table), with_path("../../etc"))
    ran = check(
        table, code=CORRUPT, says=[str(table), SHARD, "../../etc"], table=table, job="status"
    )
    (shard,) = ran.document["tables"][0]["shards"]
    assert (shard["shard_id"], shard["outcome"]) == (SHARD, "failed")


def test_a_shard_status_of_a_later_build(table: Path) -> None:
    file = latest_shard_manifest(table)
    rewrite(file, lambda data: data + bytes([15 << 3, 2]))
    check(table, code=UNSUPPORTED, says=[SHARD, file.name, "status 2"], table=table)


def test_one_broken_shard_does_not_stop_the_others(table: Path) -> None:
    broken = table / layout.shard_manifest_path(ShardId(STRANGE), 1)
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"")

    ran = run("merge", table, "--engine", "local", "--json", folder=table.parent)

    assert (ran.code, ran.document["outcome"]) == (PARTLY, "partial")
    outcomes = {s["shard_id"]: s["outcome"] for s in ran.document["tables"][0]["shards"]}
    assert outcomes == {SHARD: "done", STRANGE: "failed"}
    assert "Traceback" not in ran.text
    assert generations_of(table) == 2


# ---- generations


def generation_folder(table: Path, number: int) -> Path:
    (folder,) = (table / "_mem_wal" / SHARD).glob(f"*_gen_{number}")
    return folder


def test_a_listed_generation_that_is_gone(table: Path) -> None:
    folder = generation_folder(table, 1)
    shutil.rmtree(folder)
    check(table, code=CORRUPT, says=[SHARD, folder.name], table=table, plain=True)


def test_a_generation_whose_manifest_is_torn(table: Path) -> None:
    folder = generation_folder(table, 1)
    for file in (folder / "_versions").glob("*.manifest"):
        rewrite(file, lambda data: data[: len(data) // 2])
    check(table, code=CORRUPT, says=[SHARD, folder.name], table=table)


def test_a_generation_whose_data_is_torn(table: Path) -> None:
    folder = generation_folder(table, 1)
    for file in (folder / "data").glob("*.lance"):
        rewrite(file, lambda data: data[: len(data) // 2])
    check(table, code=CORRUPT, says=[SHARD, folder.name], table=table)


def claim_columns(folder: Path) -> Path:
    """Make a data file say that it has 4 billion columns: Lance's reader would end the process."""
    (file,) = (folder / "data").glob("*.lance")
    rewrite(file, lambda data: data[:-12] + b"\xff" * 4 + data[-8:])
    return file


@pytest.mark.parametrize("asked", [(), ("--key", "k=1"), ("--limit", "1")], ids=" ".join)
def test_a_read_of_data_that_claims_too_many_columns(table: Path, asked: tuple[str, ...]) -> None:
    file = claim_columns(generation_folder(table, 2))
    says = [str(file.relative_to(table)), str(table), "more than there is room for"]
    check(table, *asked, code=CORRUPT, says=says, table=table, job="read")


def test_a_spark_read_of_data_that_claims_too_many_columns(table: Path) -> None:
    """Told at load(), before any task would end its worker."""
    file = claim_columns(generation_folder(table, 2))
    with pytest.raises(Corruption, match=re.escape(str(file.relative_to(table)))):
        MemWalDataSource({"path": str(table)}).schema()


def test_verify_tells_data_that_claims_too_many_columns(table: Path) -> None:
    file = claim_columns(generation_folder(table, 2))
    says = ["listed generations", str(file.relative_to(table))]
    check(table, code=CORRUPT, says=says, table=table, job="verify")


def test_a_generation_whose_data_claims_too_many_columns(pristine: Path, tmp_path: Path) -> None:
    """Lance's reader would end the process, and the other table would never be merged."""
    bad, good = (copied(pristine, tmp_path / name) for name in ("bad", "good"))
    folder = generation_folder(bad, 1)
    for file in (folder / "data").glob("*.lance"):
        rewrite(file, lambda data: data[:-16] + b"\xff" * 8 + data[-8:])

    ran = run("merge", bad, good, "--engine", "local", "--json", folder=tmp_path)

    assert ran.code == PARTLY, ran.text
    assert "Traceback" not in ran.text
    assert folder.name in ran.errors
    assert "more than there is room for" in ran.errors
    assert (generations_of(bad), generations_of(good)) == (0, 2)


# ---- guards and features


def opened(table: Path) -> builders.Table:
    return builders.Table(uri=str(table), kind=builders.KINDS["int64"])


def test_a_hole_in_the_generations(table: Path) -> None:
    builders.unlist_generation(opened(table), SHARD, 1)
    says = [SHARD, "generation 1 is neither merged nor listed", "--allow-holes"]
    check(table, code=GUARD, says=says, table=table, plain=True)


def test_a_sealed_shard(table: Path) -> None:
    builders.set_status(opened(table), SHARD, ShardStatus.SEALED)
    check(table, code=GUARD, says=[SHARD, "SEALED"], table=table)


def test_generations_older_than_the_table(table: Path) -> None:
    dataset = lance.dataset(str(table))
    lance.write_dataset(dataset.to_table(), str(table), mode="overwrite")
    lance.dataset(str(table)).initialize_mem_wal()
    check(table, code=GUARD, says=[SHARD, "--allow-reinitialised"], table=table)


def test_a_table_without_a_primary_key(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    dataset = lance.write_dataset(builders.pa.table({"id": [1]}), str(plain))
    dataset.initialize_mem_wal()
    with dataset.mem_wal_writer(SHARD) as writer:
        writer.put(builders.pa.table({"id": [2]}))
    check(plain, code=UNSUPPORTED, says=[str(plain), "no primary key"], table=plain)


def test_an_untested_pylance(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(table)
    untested = f"{max(TESTED_LANCE_MAJORS) + 1}.0.0-beta.1"
    monkeypatch.setattr(lance, "__version__", untested)
    command = ["merge", str(table), "--engine", "local", "--json"]

    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == UNSUPPORTED
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"] == "refused"
    for part in (untested, "14.x", "--allow-untested-lance"):
        assert part in document["error"]
    assert listing(table) == before

    with pytest.raises(SystemExit) as ended:
        main([*command, "--allow-untested-lance"])
    assert ended.value.code == OK
    assert generations_of(table) == 2


# ---- requests and configuration


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shard", "shard-1"], "'shard-1' is not a shard id"),
        (["--shard", STRANGE], f"has no shard {STRANGE}"),
        (["--engine", "flink"], "'flink'"),
        (["--storage-option", "novalue"], "'novalue'"),
        (["--bytes-per-commit-max", "-1"], "--bytes-per-commit-max '-1': expected bytes"),
    ],
)
def test_bad_requests(table: Path, arguments: list[str], says: str) -> None:
    assert says in run_refused(table, arguments).errors


def run_refused(table: Path, arguments: list[str]) -> Ran:
    """A merge that is refused as usage, and changes nothing."""
    before = listing(table)
    ran = run("merge", table, *arguments, "--json", folder=table.parent)
    assert ran.code == USAGE, ran.text
    assert "Traceback" not in ran.text
    assert listing(table) == before
    return ran


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--generation-per-commit", "3"], "--generation-per-commit"),
        (["--generations-per-commit-max", "0"], "--generations-per-commit-max"),
        (["--generations-per-commit-max", "many"], "--generations-per-commit-max"),
        (["--until-generation", "0"], "--until-generation"),
    ],
)
def test_options_that_cannot_be_parsed(table: Path, arguments: list[str], says: str) -> None:
    """These end before a job is known, so there is no document either."""
    ran = run_refused(table, arguments)
    assert says in ran.err
    assert ran.out == ""


def test_no_table_and_no_such_command(tmp_path: Path) -> None:
    for arguments in (["merge"], ["marge", "table"]):
        ran = run(*arguments, folder=tmp_path)
        assert ran.code == USAGE
        assert "Traceback" not in ran.text


@pytest.mark.parametrize(
    ("variable", "text"),
    [("MEMWAL_GENERATIONS_PER_COMMIT_MAX", "0"), ("MEMWAL_SHARDS_PER_COMMIT_MAX", "many"),
     ("MEMWAL_ENGINE", "locl")],
)  # fmt: skip
def test_the_environment_is_blamed_for_what_it_says(table: Path, variable: str, text: str) -> None:
    ran = run("merge", table, folder=table.parent, **{variable: text})
    assert ran.code == USAGE
    assert f"error: {variable} {text!r}: expected " in ran.err
    assert generations_of(table) == 0


@pytest.mark.parametrize(
    ("flag", "form"), [("--storage-option", "KEY=VALUE"), ("--map", "OLD=NEW")]
)
def test_an_option_that_is_no_pair_is_blamed_itself(table: Path, flag: str, form: str) -> None:
    ran = run("ingest", table, "x.csv", flag, "header", folder=table.parent)
    assert ran.code == USAGE
    assert f"error: {flag} 'header': expected {form}" in ran.err


# ---- a configuration file that lies about


def test_a_file_of_the_current_folder_is_named_and_redefines_no_address(
    table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere [bold]"
    folder.mkdir()
    file = folder / "memwal.toml"
    file.write_text(f"[tables.{json.dumps(str(table))}]\nuri = '/elsewhere'\n")
    named = f"configuration: {file}, found in the current folder\n"

    ran = run("status", table, "--json", folder=folder)
    assert ran.code == OK, ran.text
    assert len(ran.document["tables"][0]["shards"]) == 1
    assert named in ran.err

    for asked in (["--config", "memwal.toml"], []):
        variable = {} if asked else {"MEMWAL_CONFIG": "memwal.toml"}
        ran = run("status", table, "--json", *asked, folder=folder, **variable)
        assert ran.code == OK, ran.text
        assert ran.err == ""
    # spark-submit would put it into the document.
    ran = run("status", table, "--json", folder=folder, PYSPARK_GATEWAY_PORT="1")
    assert ran.err == ""

    file.write_text("[defaults.storage_options]\naws_endpoint = 'http://host/${HUSH}'\n")
    ran = run("status", table, folder=folder, HUSH="hush-hush")
    assert ran.code == USAGE
    assert named in ran.err
    assert "'aws_endpoint'" in ran.err
    assert "hush-hush" not in ran.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[defaults]\ngenerations = 1\n", "unknown key 'defaults.generations'"),
        ("[defaults\n", "not valid TOML"),
        ("[defaults]\nengine = 'flink'\n", "defaults.engine"),
        ("[defaults]\ngenerations_per_commit_max = 0\n", "defaults.generations_per_commit_max"),
        ("[defaults]\nstorage_options = { a = '${NOT_SET}' }\n", "NOT_SET is not set"),
    ],
)
def test_a_bad_configuration(table: Path, text: str, says: str) -> None:
    config = table.parent / "mine.toml"
    config.write_text(text)
    named = [says] if "NOT_SET" in text else [says, str(config)]
    check(table, "--config", config, code=USAGE, says=named, table=table, plain="unknown" in says)


def test_a_table_whose_settings_cannot_be_told_fails_alone(table: Path) -> None:
    file = table.parent / "mine.toml"
    away = '[tables.away]\nuri = "s3://lake/away"\nstorage_options = { token = "${NOT_SET}" }\n'
    file.write_text(f'[tables.here]\nuri = "{table}"\n{away}')
    ran = run("status", "--all", "--json", "--config", file, folder=table.parent)
    assert ran.code == PARTLY
    found = {found["table"]: found for found in json.loads(ran.out)["tables"]}
    assert found["here"]["outcome"] == "done"
    assert (
        found["away"]["error"] == "storage option 'token': environment variable NOT_SET is not set"
    )


def test_a_configuration_that_is_not_there(table: Path) -> None:
    missing = str(table.parent / "nothing.toml")
    check(table, "--config", missing, code=USAGE, says=[missing], table=table)
    check(table, code=USAGE, says=[missing], table=table, MEMWAL_CONFIG=missing)


def test_debug_shows_the_traceback(table: Path) -> None:
    arguments = ["merge", table, "--config", "nothing.toml"]

    quiet = run(*arguments, folder=table.parent)
    loud = run(*arguments, "--debug", "--json", folder=table.parent)

    assert "Traceback" not in quiet.text
    assert "Traceback" in loud.err
    assert loud.document["error"] in loud.err
    assert (quiet.code, loud.code) == (USAGE, USAGE)


# ---- several tables


def test_a_broken_table_does_not_stop_the_other(pristine: Path, tmp_path: Path) -> None:
    broken, good = (copied(pristine, tmp_path / name) for name in ("broken", "good"))
    rewrite(latest_table_manifest(broken), lambda data: data[: len(data) // 2])
    before = listing(broken)

    ran = run("merge", broken, good, "--engine", "local", "--json", folder=tmp_path)

    assert ran.code == PARTLY
    assert ran.document["outcome"] == "partial"
    tables = {Path(t["table"]).name: t for t in ran.document["tables"]}
    assert (tables["broken"]["outcome"], tables["good"]["outcome"]) == ("failed", "done")
    assert str(broken) in tables["broken"]["error"]
    assert tables["good"]["error"] is None
    assert "Traceback" not in ran.text
    assert listing(broken) == before
    assert generations_of(good) == 2


def test_two_broken_tables_end_as_they_broke(pristine: Path, tmp_path: Path) -> None:
    broken = [copied(pristine, tmp_path / name) for name in ("one", "two")]
    for table in broken:
        rewrite(latest_table_manifest(table), lambda data: b"")
    ran = run("merge", *broken, "--engine", "local", "--json", folder=tmp_path)
    assert (ran.code, ran.document["outcome"]) == (CORRUPT, "failed")

    ran = run("merge", broken[0], tmp_path / "nothing", "--json", folder=tmp_path)
    assert (ran.code, ran.document["outcome"]) == (PARTLY, "failed")


def test_a_dry_run_tells_of_broken_input_alike(table: Path) -> None:
    rewrite(latest_shard_manifest(table), with_path("../../etc"))
    check(table, "--dry-run", code=CORRUPT, says=[SHARD, "../../etc"], table=table)
