"""Tables by their names in Lance namespaces: on folders, on S3, behind a REST server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memwal
from memwal.cli.flags import ReadFlags
from memwal.clock import SystemClock
from memwal.config import load_config, resolve_table
from memwal.errors import (
    BadCredentials,
    MemWalError,
    NotATable,
    StoreUnavailable,
    Unreachable,
    Unsupported,
    Usage,
)
from memwal.run.stores import open_stores
from memwal.store.objects.opening import open_objects
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.namespace_server import TOKEN, NamespaceServer
from tests.support.s3server import S3Server
from tests.support.scripted_server import Reply, ScriptedServer

MOMENT = "Sun, 22 Nov 2026 20:56:26 GMT"
NAMES = ["sales.orders", "sales.returns", "sales.old", "hr.people"]


@pytest.fixture
def rest() -> Iterator[NamespaceServer]:
    with NamespaceServer(tables=dict.fromkeys(NAMES, "/nowhere")) as server:
        yield server


def configured(folder: Path, text: str) -> str:
    file = folder / "memwal.toml"
    file.write_text(text)
    return str(file)


def behind(folder: Path, server: NamespaceServer, more: str = "") -> str:
    text = f'[namespaces.lake]\nimpl = "rest"\nuri = "{server.uri}"\n'
    return configured(folder, f'{text}header.Authorization = "${{LAKE_TOKEN}}"\n{more}')


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)


def make_pending(uri: str, options: Any = None) -> Table:
    table = builders.make_table(uri, rows=range(5), shards=1, options=options)
    table.flush(table.shards[0], Put([1, 7], 2))
    return table


@pytest.mark.integration
def test_a_table_of_a_folder_is_merged_and_read_by_its_name(tmp_path: Path) -> None:
    make_pending(str(tmp_path / "lake" / "orders.lance"))
    text = f'[namespaces.lake]\nimpl = "dir"\nroot = "{tmp_path}/lake"\n'
    file = configured(tmp_path, f'{text}[tables.mine]\nuri = "lake:orders"\n')
    table = memwal.open_table("lake:orders", config=file)
    assert table.name == "lake:orders"
    assert table.merge().outcome == "done"
    assert memwal.open_table("mine", config=file).read(columns=["k"]).read_all().num_rows == 6
    with pytest.raises(NotATable, match=r"^lake:order: .* \(is orders meant\?\)$"):
        memwal.open_table("lake:order", config=file).status()


@pytest.mark.integration
def test_names_of_a_server_are_globs_over_all_its_pages(
    tmp_path: Path, rest: NamespaceServer
) -> None:
    flags = ReadFlags(config=behind(tmp_path, rest))
    assert [t.name for t in flags.tables(["lake:sales.*"])] == [
        "lake:sales.old",
        "lake:sales.orders",
        "lake:sales.returns",
    ]
    assert [t.name for t in flags.tables(["lake:sales.o*s", "lake:hr.people"])] == [
        "lake:sales.orders",
        "lake:hr.people",
    ]
    with pytest.raises(Usage, match=r"^lake:sales.ordr\*: .*\(is orders "):
        flags.tables(["lake:sales.ordr*"])
    with pytest.raises(Usage, match="only the last part"):
        flags.tables(["lake:s*.orders"])


def status(file: str, name: str) -> MemWalError:
    with pytest.raises(MemWalError) as refused:
        memwal.open_table(name, config=file).status()
    return refused.value


@pytest.mark.integration
def test_what_a_server_refuses_names_the_table_and_shows_no_secret(
    tmp_path: Path, rest: NamespaceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = behind(tmp_path, rest)
    absent = status(file, "lake:sales.order")
    assert isinstance(absent, NotATable)
    assert "lake:sales.order: " in str(absent)
    assert "(is orders meant?)" in str(absent)
    rest.managed = True
    managed = status(file, "lake:sales.orders")
    assert isinstance(managed, Unsupported)
    assert str(managed).startswith("lake:sales.orders: namespace lake manages the versions")
    monkeypatch.setenv("LAKE_TOKEN", "Bearer of-a-secret")
    refused = status(file, "lake:sales.orders")
    assert isinstance(refused, BadCredentials)
    assert str(refused).startswith("lake:sales.orders: the namespace refuses: ")
    assert "of-a-secret" not in str(refused)
    rest.__exit__()
    assert isinstance(status(file, "lake:sales.orders"), StoreUnavailable)


@pytest.mark.integration
def test_a_namespace_that_never_answers_is_given_up_once_for_all_its_tables(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # which is never read
        text = f'uri = "http://127.0.0.1:{silent.getsockname()[1]}"'
        file = configured(
            tmp_path,
            f'[defaults]\nstore_seconds_max = 1\n[namespaces.mute]\nimpl = "rest"\n{text}\n',
        )
        began = time.monotonic()
        found = [status(file, f"mute:sales.{name}") for name in ("orders", "returns")]
        assert 1 <= time.monotonic() - began < 6
    assert [type(error) for error in found] == [Unreachable, Unreachable]
    assert "mute:sales.returns: the namespace gave no answer for 1 s" in str(found[1])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('impl = "glue"', "impl 'glue': expected 'dir' or 'rest'"),
        ('impl = "dir"', "impl 'dir' needs 'root'"),
        ('impl = "rest"\nroot = "/x"', "impl 'rest' needs 'uri'"),
        ('impl = "dir"\nroot = "/x"\ndynamic_context_provider.impl = "os.x"', "names no code"),
        ('impl = "dir"\nroot = "/x"\nstorage.a = [1]', "storage.a: expected a text"),
        ('impl = "dir"\nroot = "/${LAKE_TOKEN}"', "'root' in the configuration says where"),
        ('impl = "rest"\nuri = "http://${LAKE_TOKEN}"', "'uri' in the configuration says where"),
        ('impl = "dir"\nroot = "/x"\nstorage.aws_endpoint = "${LAKE_TOKEN}"', "says where"),
        ('impl = "dir"\nroot = "/x"\nstorage.token = "${UNSET}"', "variable UNSET is not set"),
    ],
)
def test_a_namespace_that_is_none_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = configured(tmp_path, f"[namespaces.lake]\n{text}\n")
    with pytest.raises(Usage) as refused:
        memwal.open_table("lake:orders", config=file)
    assert problem in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_a_name_goes_to_a_namespace_only_by_the_configuration(tmp_path: Path) -> None:
    text = f'[namespaces.lake]\nimpl = "dir"\nroot = "{tmp_path}"\n'
    config = load_config(configured(tmp_path, f"{text}[tables.'lake:own']\nuri = '/own'\n"), {})
    assert resolve_table("lake:own", config, {}, {}).uri == "/own"
    assert resolve_table("./lake:orders", config, {}, {}).uri == "./lake:orders"
    forged = {"memwal_namespace": "{}"}
    assert resolve_table("orders", config, forged, {}).storage_options == {}
    with pytest.raises(NotATable, match=r"no \[namespaces.lak\] in .*is lake meant"):
        resolve_table("lak:orders", config, {}, {}).find_uri()
    with pytest.raises(Usage, match=r"lake:a\.\.b: expected lake:table"):
        resolve_table("lake:a..b", config, {}, {})
    with pytest.raises(Usage, match=r"is named NAME:schema\.table"):
        open_stores("namespace://lake/orders", {})


@pytest.mark.integration
def test_what_the_namespace_says_beats_what_is_configured(
    tmp_path: Path, rest: NamespaceServer
) -> None:
    rest.storage_options = {"region": "theirs", "aws_access_key_id": "a"}
    own = "aws_region = 'ours'\naws_session_token = 't'\nuser_agent = 'kept'\n"
    more = f"[defaults.storage_options]\n{own}"
    config = load_config(behind(tmp_path, rest, more), {})
    table = resolve_table("lake:hr.people", config, {}, {"LAKE_TOKEN": TOKEN})
    stores = open_stores(table.find_uri(), table.storage_options)
    options = {k: v for k, v in stores.storage_options.items() if k != "memwal_namespace"}
    assert (stores.uri, options) == ("/nowhere", rest.storage_options | {"user_agent": "kept"})


@pytest.mark.integration
def test_credentials_that_expire_are_renewed(
    tmp_path: Path, rest: NamespaceServer, s3_server: S3Server
) -> None:
    uri = f"s3://{s3_server.make_bucket('tokens')}/orders"
    pending = make_pending(uri, s3_server.storage_options)
    rest.tables["sales.orders"] = uri
    rest.storage_options, rest.seconds = s3_server.storage_options, 1.0
    config = load_config(behind(tmp_path, rest), {})
    resolved = resolve_table("lake:sales.orders", config, {}, {"LAKE_TOKEN": TOKEN})
    driver = open_stores(resolved.find_uri(), resolved.storage_options)
    assert driver.views.table().version == pending.versions()[-1]
    held = driver.tables.base()
    time.sleep(1.2)
    # A unit that waited for its turn has what the driver had.
    unit = open_stores(driver.uri, driver.storage_options)
    for stores in (driver, unit):
        before = len(rest.asked)
        assert stores.objects.list_folders("_mem_wal") == [pending.shards[0]]
        assert stores.tables.base().count_rows() == 5
        assert len(rest.asked) > before or stores is unit
    assert held.to_table(columns=["k"]).num_rows == 5
    table = memwal.open_table("lake:sales.orders", config=str(config.file))
    assert table.merge().outcome == "done"
    limits: Any = {"retention_seconds": 0.0, "grace_seconds": 0.0, "allow_short_retention": True}
    assert table.garbage(execute=True, **limits).dropped == 1
    time.sleep(1.2)
    assert table.read(columns=["k"]).read_all().num_rows == 6
    rest.tables.clear()
    time.sleep(1.2)
    with pytest.raises(NotATable, match=r"^lake:sales\.orders: "):
        driver.objects.list_folders("_mem_wal")


@pytest.mark.integration
def test_credentials_for_clouds_are_renewed_too(tmp_path: Path, rest: NamespaceServer) -> None:
    cloud = ScriptedServer()
    cloud.script.append(Reply(body=b"data", headers={"Last-Modified": MOMENT, "ETag": '"1"'}))
    rest.tables["sales.orders"] = "gs://bucket/orders"
    rest.storage_options = {"google_base_url": cloud.endpoint, "allow_http": "true"}
    rest.token_option, rest.seconds = "google_storage_token", 0.9
    config = load_config(behind(tmp_path, rest), {})
    table = resolve_table("lake:sales.orders", config, {}, {"LAKE_TOKEN": TOKEN})
    objects = open_objects(table.find_uri(), table.storage_options, SystemClock())
    for wait_seconds in (0, 0, 0.7):
        time.sleep(wait_seconds)
        assert objects.get("a") == b"data"
    cloud.close()
    first, second, third = [r.headers["authorization"] for r in cloud.requests]
    assert first == second != third
    assert len(rest.asked) == 2
