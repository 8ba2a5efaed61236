"""The configuration file: what wins over what, and how mistakes are named."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest

import memwal
from memwal import shard_of
from memwal.cli import main
from memwal.cli.requests import parse_pairs
from memwal.config import (
    BackupSettings,
    Config,
    Settings,
    check_options,
    load_config,
    make_settings,
    name_variable,
    resolve_table,
)
from memwal.errors import NotATable, Usage
from memwal.ingest.writer import TableWriter
from memwal.read import open_table
from tests.support import builders

FILE = """
[defaults]
engine = "local"
generations_per_commit_max = 3
storage_options = { region = "eu-1", token = "${MEMWAL_TEST_KEY}" }

[tables.users]
uri = "s3://bucket/users"
generations_per_commit_max = 5
storage_options = { region = "us-2" }

[tables.plain]
uri = "/data/plain"
"""
SECRET = {"MEMWAL_TEST_KEY": "from the environment"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "memwal.toml"
    path.write_text(FILE)
    return path


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "bad.toml").write_text(text)
    return str(tmp_path / "bad.toml")


# ---- finding the file


def test_the_option_beats_the_environment_which_beats_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("option", "environment", "memwal"):
        (tmp_path / f"{name}.toml").write_text(f'[tables.{name}]\nuri = "/{name}"\n')
    monkeypatch.chdir(tmp_path)
    option, environment = "option.toml", {"MEMWAL_CONFIG": str(tmp_path / "environment.toml")}

    assert list(load_config(option, environment).tables) == ["option"]
    assert list(load_config(None, environment).tables) == ["environment"]
    assert list(load_config(None, {}).tables) == ["memwal"]
    (tmp_path / "memwal.toml").unlink()
    assert load_config(None, {}) == Config()


def test_a_file_that_was_asked_for_must_exist(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.toml")
    for path, environment in ((missing, {}), (None, {"MEMWAL_CONFIG": missing})):
        with pytest.raises(Usage, match=r"nothing\.toml: no such configuration file"):
            load_config(path, environment)


@pytest.mark.parametrize("whose", ["everybody's", "another user's", "another user's link"])
def test_a_file_of_somebody_else_is_not_taken_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    if whose != "everybody's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    monkeypatch.chdir(tmp_path)
    file, link = tmp_path / "own.toml", tmp_path / "memwal.toml"
    file.write_text('[tables.t]\nuri = "/t"\n')
    link.symlink_to(file)
    assert list(load_config(None, {}).tables) == ["t"]

    if whose == "everybody's":
        file.chmod(0o646)
    else:
        os.chown(link, 4711, 4711, follow_symlinks=whose == "another user's")
    with pytest.raises(Usage, match=r"belongs to another user, or everybody may write to it"):
        load_config(None, {})
    assert list(load_config("memwal.toml", {}).tables) == ["t"]
    assert list(load_config(None, {"MEMWAL_CONFIG": "memwal.toml"}).tables) == ["t"]
    assert load_config("/dev/null", {}).model_dump() == Config().model_dump()


# ---- mistakes


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("generations = 1", "unknown key 'generations'"),
        ("[defaults]\nengin = 'local'", "unknown key 'defaults.engin'"),
        ("[tables.t]\nuri = '/t'\nsooner = '1h'", "unknown key 'tables.t.sooner'"),
        ("[defaults]\nuri = '/t'", "unknown key 'defaults.uri'"),
        ("[tables.t]\nengine = 'local'", "tables.t.uri: expected a value"),
        ("[tables.t]\nuri = ''", "tables.t.uri"),
        ("[tables.t]\nuri = '${LAKE}/t'", "tables.t.uri '${LAKE}/t': expected an address"),
        ("[defaults]\nengine = 'flink'", "defaults.engine 'flink': expected 'auto', 'spark' or"),
        ("[defaults]\npriority = 10", "defaults.priority 10: expected 9 or less"),
        ("[defaults]\npriority = 'high'", "defaults.priority 'high': expected a whole number"),
        ("[defaults]\nconflict_seconds_max = 0", "_max 0: expected more than 0s"),
        ("[defaults]\nretention = 7", "expected 1d or more, such as '7d': 7 alone means 7 seconds"),
        ("[defaults]\nretention = '7h'", "defaults.retention '7h': expected 1d or more"),
        ("[defaults]\ngrace = 'long'", "defaults.grace 'long': expected seconds, such as 90"),
        ("[defaults]\nbytes_per_commit_max = 'much'", "defaults.bytes_per_commit_max 'much'"),
        ("[defaults]\nstorage_options = { a = 'x', b = 1 }", "storage_options.b: expected a text"),
        ("[airflow]\non_failure = 'tell'", "airflow.on_failure.0 'tell': expected pattern"),
        ("[airflow]\non_failure = ['os; x.y']", "airflow.on_failure.0 'os; x.y': expected pattern"),
        ("tables = 3", "tables"),
        ("[defaults", "not valid TOML"),
        ("one = 1\n[defaults]\ntwo = 2", "unknown key 'defaults.two'; unknown key 'one'"),
        ("[table.x]\nuri = '/t'", "unknown key 'table' (is tables meant?)"),
        ("[tables.t]\nurl = '/t'", "'tables.t.url' (is uri meant?)"),
        ("[default]\nengine = 'local'", "'default' (is defaults meant?)"),
        ("[defaults]\nretenton = '7d'", "'defaults.retenton' (is retention meant?)"),
        ("[watch]\ncatchup = 1", "unknown key 'watch.catchup'"),
        ("[tables.t]\nuri = 't'\nbackup = { keep = '7d' }", "backup.uri: expected a value"),
        ("[tables.t]\nuri = 't'\nbackup = { uri = 'x', keep = 'all' }", "tables.t.backup.keep"),
        ("[tables.t]\nuri = 't'\nbackup = { uri = 'x', keep = '0' }", "tables.t.backup.keep"),
        ("[tables.t]\nuri = 't'\nbackup = { uri = 'x', kep = '7' }", "(is keep meant?)"),
    ],
)
def test_mistakes_are_named_with_their_file(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(Usage) as refused:
        load_config(written(tmp_path, text), {})
    assert named in str(refused.value)
    assert "bad.toml" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [("7", 7), ("256MB", 256_000_000), ("1GiB", 2**30), ("1.5kib", 1536), (" 3TB ", 3 * 10**12),
     ("5XB", None), ("1.5B", None), ("1M", None), ("GiB", None), ("0MB", None), ("-1GB", None)],
)  # fmt: skip
def test_bytes_take_units_wherever_they_are_given(
    tmp_path: Path, text: str, found: int | None
) -> None:
    name = "bytes_per_commit_max"
    file = written(tmp_path, f"[tables.t]\nuri = '/t'\n{name} = '{text}'\n")
    given = [
        lambda: resolve_table("t", load_config(file, {}), {}, {}).settings,
        lambda: resolve_table("t", Config(), {}, {name_variable(name): text}).settings,
        lambda: make_settings(bytes_per_commit_max=text),
    ]
    for read in given:
        if found is not None:
            assert read().bytes_per_commit_max == found
            continue
        with pytest.raises(Usage, match=rf"(?i){name}[: ]") as refused:
            read()
        assert "such as 268435456, 256MB or 1GiB" in str(refused.value) or text in ("0MB", "-1GB")


def test_seconds_take_units_too() -> None:
    assert make_settings(lease_seconds="5m") == make_settings(lease_seconds="300")
    assert make_settings(due_age_seconds_min="1.5d").due_age_seconds_min == 129_600
    with pytest.raises(Usage, match=r"^lease_seconds '5 weeks': expected seconds, such as 90"):
        make_settings(lease_seconds="5 weeks")


def test_a_file_that_is_no_text_or_a_folder_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "bad.toml", tmp_path):
        with pytest.raises(Usage, match="can't be read"):
            load_config(str(path), {})


# ---- looking tables up


def test_a_table_s_own_section_beats_the_defaults(file: Path) -> None:
    config = load_config(str(file), {})

    users = resolve_table("users", config, {}, SECRET)
    assert (users.name, users.uri) == ("users", "s3://bucket/users")
    assert users.settings.generations_per_commit_max == 5
    assert users.settings.engine == "local"
    assert users.storage_options == {"region": "us-2", "token": "from the environment"}

    plain = resolve_table("plain", config, {}, SECRET)
    assert plain.settings.generations_per_commit_max == 3
    assert plain.storage_options["region"] == "eu-1"

    # What is no name is an address.
    other = resolve_table("/some/where", config, {}, SECRET)
    assert (other.name, other.uri) == ("/some/where", "/some/where")
    assert other.settings.generations_per_commit_max == 3


PATTERNS = """
[defaults]
priority = 3
storage_options = { region = "eu-1", conditional_put = "etag" }

[patterns."orders*"]
priority = 7
freshness = "10s"
audit = "trails"
storage_options = { region = "us-2" }

[patterns."*_old"]
priority = 1

[namespaces.orders]
impl = "dir"
root = "/lake"

[tables.orders]
uri = "/data/orders"
[tables.orders_new]
uri = "/data/new"
priority = 9
storage_options = { region = "us-3" }
[tables.orders_old]
uri = "/data/old"
[tables.users]
uri = "/data/users"
"""


@pytest.mark.parametrize(
    ("table", "priority", "freshness", "region"),
    [
        ("users", 3, None, "eu-1"),
        ("orders", 7, 10, "us-2"),
        ("orders_new", 9, 10, "us-3"),
        ("orders_old", 1, 10, "us-2"),  # the later pattern beats the one before
        ("orders:sales", 7, 10, "us-2"),  # a name in a namespace, which stands in no file
        ("./orders_old", 3, None, "eu-1"),
        ("s3://orders/orders", 3, None, "eu-1"),
    ],
)
def test_a_pattern_is_between_the_defaults_and_the_table(
    tmp_path: Path, table: str, priority: int, freshness: float | None, region: str
) -> None:
    config = load_config(written(tmp_path, PATTERNS))
    found = resolve_table(table, config, {}, {})
    assert (found.priority, found.settings.freshness) == (priority, freshness)
    assert config.find_priority(table) == priority
    assert found.storage_options["region"] == region
    assert found.storage_options["conditional_put"] == "etag"
    assert found.settings.audit == (None if freshness is None else str(tmp_path / "trails"))


def test_a_name_that_leads_nowhere_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(written(tmp_path, "[tables.orders]\nuri = '/o'\n"), {})
    with pytest.raises(NotATable) as refused:
        resolve_table("order", config, {}, {}).find_uri()
    file = tmp_path / "bad.toml"
    assert str(refused.value) == (
        f"order: no such table: not in {file} (is orders meant?), and no folder here has this name"
    )
    with pytest.raises(NotATable, match=r"^order: no such table: no configuration file was read, "):
        resolve_table("order", Config(), {}, {}).find_uri()
    (tmp_path / "order").mkdir()
    for there in ("order", "orders", "/somewhere/else", "."):
        found = resolve_table(there, config, {}, {})
        assert found.find_uri() == found.uri


@pytest.mark.parametrize("address", ["s3://lake/orders", "/lake/orders", "./orders", ".", ".."])
def test_an_address_is_never_looked_up(tmp_path: Path, address: str) -> None:
    text = f"[tables.'{address}']\nuri = '/elsewhere'\nstorage_options = {{ token = 'theirs' }}\n"
    found = resolve_table(address, load_config(written(tmp_path, text), {}), {}, {})
    assert (found.name, found.uri, found.storage_options) == (address, address, {})


@pytest.mark.parametrize(
    "option",
    ["aws_endpoint", "AWS_ENDPOINT_URL", "endpoint", "proxy_url", "azure_authority_host",
     "aws_container_credentials_full_uri"],
)  # fmt: skip
def test_no_variable_becomes_part_of_an_address(tmp_path: Path, option: str) -> None:
    text = f"[defaults.storage_options]\n{option} = 'http://host/${{MEMWAL_TEST_KEY}}'\n"
    config = load_config(written(tmp_path, text), {})
    with pytest.raises(Usage, match=f"'{option}'.*says where requests go") as refused:
        resolve_table("/t", config, {}, SECRET)
    assert "from the environment" not in str(refused.value)
    assert resolve_table("/t", config, {option: "http://mine"}, SECRET).storage_options == {
        option: "http://mine"
    }


def test_variables_are_replaced_anywhere_in_a_value(tmp_path: Path) -> None:
    text = (
        "[tables.t]\nuri = '/t'\nstorage_options = { token = 'x-${ONE}-${TWO}', region = '$ONE' }"
    )
    config = load_config(written(tmp_path, text), {})
    found = resolve_table("t", config, {}, {"ONE": "1", "TWO": "${ONE}"})
    # What a variable holds is a value, not another template.
    assert found.storage_options == {"token": "x-1-${ONE}", "region": "$ONE"}


def test_a_variable_that_is_not_set_is_named_unless_an_option_beats_it(file: Path) -> None:
    config = load_config(str(file), {})
    with pytest.raises(Usage, match=r"'token'.*MEMWAL_TEST_KEY is not set"):
        resolve_table("users", config, {}, {})
    found = resolve_table("users", config, {"token": "option"}, {})
    assert found.storage_options == {"region": "us-2", "token": "option"}


def test_options_are_key_value_pairs() -> None:
    assert parse_pairs(["a=1", "b=x=y", "c="], "--option") == {"a": "1", "b": "x=y", "c": ""}
    for pair in ("secret", "=secret", ""):
        with pytest.raises(Usage, match=r"^--option .*expected KEY=VALUE") as refused:
            parse_pairs([pair], "--option")
        assert "=secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("aws_endpont", r"'aws_endpont' \(is aws_endpoint meant\?\).*'raw:aws_endpont'"),
        ("AWS_REGON", r"'AWS_REGON' \(is aws_region meant\?\)"),
        ("something_else", r"unknown storage option 'something_else': it would be ignored"),
        ("raw", "unknown storage option 'raw'"),
        ("", "unknown storage option ''"),
    ],
)
def test_a_storage_option_that_nobody_takes_is_refused(option: str, says: str) -> None:
    secret = "hunter2"
    resolvers: list[Callable[[], object]] = [
        lambda: resolve_table("s3://lake/t", Config(), {option: secret}, {}),
        lambda: shard_of("s3://lake/t", [], {option: secret}),
        lambda: TableWriter("s3://lake/t", {option: secret}),
        lambda: open_table("s3://lake/t", {option: secret}),
    ]
    for resolve in resolvers:
        with pytest.raises(Usage, match=says) as refused:
            resolve()
        assert secret not in str(refused.value)


def test_storage_options_of_the_environment_reach_what_programs_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MEMWAL_STORAGE_OPTIONS", '{"aws_endpont": "hush"}')
    for open_it in (memwal.open_table, open_table, TableWriter, lambda uri: shard_of(uri, [])):
        with pytest.raises(Usage, match="aws_endpont"):
            open_it("s3://lake/t")
    monkeypatch.setenv("MEMWAL_STORAGE_OPTIONS", '{"region": "env", "token": "env"}')
    assert open_table("s3://lake/t", {"region": "call"})._stores.storage_options == {
        "region": "call",
        "token": "env",
    }


def test_a_storage_option_is_passed_on_as_it_is_where_one_asks_for_it() -> None:
    given = {"raw:brand_new": "1", "AWS_Region": "eu-1", "headers.x-tenant": "me"}
    assert resolve_table("s3://lake/t", Config(), given, {}).storage_options == {
        "brand_new": "1",
        "AWS_Region": "eu-1",
        "headers.x-tenant": "me",
    }
    with pytest.raises(Usage, match="'region' is given twice"):
        resolve_table("s3://lake/t", Config(), {"raw:region": "1", "region": "2"}, {})


@pytest.mark.parametrize("store", ["aws", "azure", "gcs"])
def test_options_that_stores_take_are_known(store: str) -> None:
    """As obstore's stubs list them, which is built on what pylance is: a newer one fails here."""
    stub = ast.parse((Path(obstore.__file__).parent / f"_store/_{store}.pyi").read_text())
    config = next(n for n in stub.body if isinstance(n, ast.ClassDef) and "Config" in n.name)
    names = {n.target.id: "" for n in config.body if isinstance(n, ast.AnnAssign)}
    assert len(names) > 5
    assert check_options(names) == names


def test_a_variable_that_looks_misspelt_is_refused_and_others_are_none_of_ours() -> None:
    for name in ("MEMWAL_FRESHNES", "MEMWAL_CONFG", "MEMWAL_RETENTON"):
        with pytest.raises(Usage, match=rf"unknown variable {name} \(is MEMWAL_\w+ meant\?\)"):
            resolve_table("/t", Config(), {}, {name: "1"})
    theirs = ("MEMWAL_PORT", "MEMWAL_SERVICE_HOST", "MEMWAL_PORT_80_TCP_ADDR", "MEMWAL_LOG_FORMAT")
    resolve_table("/t", Config(), {}, dict.fromkeys(theirs, "json"))


def test_a_relative_uri_is_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "conf"
    here.mkdir()
    uris = {
        "orders.lance": f"{here}/orders.lance",
        "../orders": f"{here}/../orders",
        **{uri: uri for uri in ("/data/orders", "s3://lake/orders", "lake:orders")},
    }
    text = "".join(f"[tables.t{n}]\nuri = '{uri}'\n" for n, uri in enumerate(uris))
    file = written(here, text + "[namespaces.lake]\nimpl = 'dir'\nroot = '/lake'\n")
    monkeypatch.chdir(tmp_path)
    config = load_config(os.path.relpath(file), {})
    assert [table.uri for table in config.tables.values()] == [*uris.values()]


def test_a_place_for_backups_is_beside_the_file_and_has_the_tables_options_or_its_own(
    tmp_path: Path,
) -> None:
    text = (
        "[tables.near]\nuri = 't'\nbackup = { uri = 'copies', keep = '7d' }\n"
        "storage_options = { region = 'eu-1' }\n"
        "[tables.far]\nuri = 't'\nstorage_options = { region = 'eu-1' }\n"
        "[tables.far.backup]\nuri = 's3://copies/t'\nstorage_options = { region = '${THERE}' }\n"
        "[tables.none]\nuri = 't'\n"
    )
    config = load_config(written(tmp_path, text), {})
    near, far, none = (
        resolve_table(name, config, {}, {"THERE": "us-2"}).backup for name in config.tables
    )
    assert near == BackupSettings(
        uri=str(tmp_path / "copies"), keep="7d", storage_options={"region": "eu-1"}
    )
    assert far == BackupSettings(uri="s3://copies/t", storage_options={"region": "us-2"})
    assert none is None
    unset = resolve_table("far", config, {}, {})  # which only those need who ask for the place
    with pytest.raises(Usage, match="THERE"):
        unset.find_backup_place()


_POLICY = "policy.columns = {{ total = '{operator}' }}\n"


@pytest.mark.parametrize("given", ["{there}", "{there}/", "file://{there}", "sub/../t", "link"])
def test_a_table_by_its_address_has_the_policy_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Rows would be merged without it."""
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to("t")
    monkeypatch.chdir(tmp_path)
    text = f"[tables.t]\nuri = 't'\nmemory_bytes_max = 7\n{_POLICY.format(operator='sum')}"
    config = load_config(written(tmp_path, text), {})
    found = resolve_table(given.format(there=tmp_path / "t"), config, {}, {})
    named = resolve_table("t", config, {}, {})
    assert named.policy is not None
    assert found.policy == named.policy
    assert found.settings == Settings()
    assert resolve_table(str(tmp_path / "other"), config, {}, {}).policy is None


@pytest.mark.parametrize("given", ["account_name", "azure_storage_account_name"])
def test_a_store_is_the_same_however_its_options_are_spelt(tmp_path: Path, given: str) -> None:
    text = (
        f"[tables.t]\nuri = 'az://lake/t'\n{_POLICY.format(operator='sum')}"
        "[tables.t.storage_options]\nazure_account_name = '${ACCOUNT}'\n"
    )
    config = load_config(written(tmp_path, text), {})
    found = resolve_table("az://lake/t", config, {given: "ours"}, {"ACCOUNT": "ours"})
    assert found.policy is not None
    assert resolve_table("az://lake/t", config, {given: "x"}, {"ACCOUNT": "ours"}).policy is None
    # Whether it is that table can't be told: nothing is merged without its policy.
    with pytest.raises(Usage, match="ACCOUNT is not set"):
        resolve_table("az://lake/t", config, {given: "ours"}, {})


def test_the_same_address_in_another_store_is_another_table(tmp_path: Path) -> None:
    text = (
        "[tables.t]\nuri = 's3://lake/t'\n"
        + _POLICY.format(operator="sum")
        + "[tables.t.storage_options]\naws_endpoint = 'http://one'\n"
    )
    config = load_config(written(tmp_path, text), {})

    def find(endpoint: str) -> object:
        return resolve_table("s3://lake/t", config, {"aws_endpoint": endpoint}, {}).policy

    assert find("http://one") is not None
    assert find("http://two") is None


def test_two_policies_for_one_address_are_refused(tmp_path: Path) -> None:
    text = "".join(
        f"[tables.{name}]\nuri = '/t'\n{_POLICY.format(operator=operator)}"
        for name, operator in {"one": "sum", "two": "max"}.items()
    )
    config = load_config(written(tmp_path, text), {})
    with pytest.raises(Usage, match=r"/t is one and two in .*policies that differ"):
        resolve_table("/t", config, {}, {})


# ---- flag over environment over file


SETTINGS = {
    "engine": "spark",
    "log_format": "json",
    "master": "local[3]",
    "materialize_deletions_threshold": "0.5",
    "lease_seconds": "20",
    "compaction": "auto",
    "retention": "7d",
    "grace": "2h",
}


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - {"storage_options"}))
def test_the_environment_beats_the_file_for_every_setting(tmp_path: Path, name: str) -> None:
    given = SETTINGS.get(name, "7")
    text = "[defaults]\nengine = 'local'\n[tables.t]\nuri = '/t'\nshards_per_commit_max = 1\n"
    config = load_config(written(tmp_path, text), {})
    for table in ("t", "/t"):
        before = resolve_table(table, config, {}, {}).settings
        after = resolve_table(table, config, {}, {name_variable(name): given, "MEMWAL_X": "1"})
        assert after.settings == before.model_copy(
            update={name: Settings.model_validate({name: given}).model_dump()[name]}
        )
        assert after.settings != before
    assert (
        resolve_table("t", config, {}, {name_variable(name): " "}).settings
        == resolve_table("t", config, {}, {}).settings
    )


@pytest.mark.parametrize(
    ("variable", "text"),
    [("MEMWAL_SHARDS_PER_COMMIT_MAX", "0"), ("MEMWAL_RUNS_KEPT_MAX", "some"),
     ("MEMWAL_ENGINE", "locl")],
)  # fmt: skip
def test_a_mistake_in_the_environment_is_named_as_such(variable: str, text: str) -> None:
    with pytest.raises(Usage, match=f"^{variable} {text!r}: expected "):
        resolve_table("/t", Config(), {}, {variable: text})


@pytest.mark.integration
def test_a_lease_lasts_as_long_as_its_run_s_setting_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = builders.make_table(tmp_path / "table")
    (shard,) = table.shards
    file = written(tmp_path, f"[tables.t]\nuri = '{table.uri}'\nlease_seconds = 40\n")

    def length(*arguments: str) -> float:
        table.flush(shard, builders.Put([1], 1))
        with pytest.raises(SystemExit) as ended:
            main(["merge", *arguments, "--json"])
        assert ended.value.code == 0, capsys.readouterr()
        claim = table.stores.leases.current()
        assert claim is not None
        return claim.length_nanos / 10**9

    assert length(table.uri) == 300
    assert length("t", "--config", file) == 40
    monkeypatch.setenv("MEMWAL_LEASE_SECONDS", "50")
    assert length("t", "--config", file) == 50
    table.flush(shard, builders.Put([1], 2))
    memwal.open_table(table.uri).merge()
    claim = table.stores.leases.current()
    assert claim is not None
    assert claim.length_nanos == 50 * 10**9
