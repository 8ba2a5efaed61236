"""What a run of an Airflow DAG may be asked for; needs no Airflow."""

from __future__ import annotations

from typing import Any

import pytest
from memwal_airflow.hooks.request import (
    NAME_CHARACTERS_MAX,
    build_option,
    build_words,
    check_keys,
    check_name,
    find_configured_tables,
    parse_shard,
    parse_tables,
)

from memwal.config import Config
from memwal.errors import Usage
from memwal.jobs.garbage.request import GarbageRequest
from memwal.options import list_options

SHARD = "0c9a1b6e-5a52-4c5f-9b2e-6d0f6f0f0a01"
SECRET = "s3://user:hunter2@lake/secret"
CONFIG = Config.model_validate(
    {
        "tables": {
            "orders": {"uri": "s3://lake/orders"},
            "again": {"uri": "s3://lake/orders"},
            "{{ 7 * 6 }}": {"uri": "/data/odd"},
            "secret": {"uri": SECRET},
            "sales": {"uri": "lake:sales.orders"},
        },
        "namespaces": {"lake": {"impl": "dir", "root": "/lake"}},
    }
)
ANY = CONFIG.model_copy(update={"airflow": CONFIG.airflow.model_copy(update={"any_address": True})})


@pytest.mark.parametrize(
    "name",
    [
        "-x",
        "--storage-option=aws_endpoint=http://elsewhere",
        "--master=spark://elsewhere",
        "",
        " ",
        "a\nb",
        "a\x1b[2Jb",
        "a\x00b",
        "a\u2028b",
        "a\ud800b",
        "a\u202eb",
        "a\u200bb",
        "x" * (NAME_CHARACTERS_MAX + 1),
        None,
        7,
        ["orders"],
    ],
)
def test_what_is_no_name(name: Any) -> None:
    with pytest.raises(Usage, match=r"^index ") as caught:
        check_name("index", name)
    assert str(caught.value).isprintable()
    with pytest.raises(Usage, match=r"^table "):
        parse_tables(["orders", name])
    with pytest.raises(Usage, match=r"^shard "):
        parse_shard(name)


def test_what_is_one() -> None:
    for name in ("orders", "a-b", "größe mit leer", "s3://lake/orders", "{{ 7 * 6 }}"):
        assert check_name("table", name) == name
    assert parse_tables("orders") == ["orders"]
    assert parse_tables(("b", "a", "b")) == ["b", "a"]
    assert parse_tables(None) == []
    assert parse_shard(SHARD.upper()) == parse_shard(SHARD.replace("-", "")) == SHARD
    assert parse_shard(SHARD[:6]) == SHARD[:6]
    for bad in ("../../x", "shard-1", SHARD + "0"):
        with pytest.raises(Usage, match="expected a UUID, or how one begins"):
            parse_shard(bad)


def test_tables_stand_behind_a_double_dash() -> None:
    words = build_words(["--dry-run", "--config", "f"], ["orders", "s3://lake/x"])
    assert words == ["--dry-run", "--config", "f", "--", "orders", "s3://lake/x"]
    with pytest.raises(Usage, match="dash"):
        build_words([], ["orders", "--master=spark://elsewhere"])
    with pytest.raises(Usage, match="no table"):
        build_words(["--dry-run"], [])


def test_only_tables_of_the_configuration() -> None:
    assert find_configured_tables(["{{ 7 * 6 }}", "orders"], CONFIG) == ["{{ 7 * 6 }}", "orders"]
    # By its address a table has its own settings all the same, and is one table.
    assert find_configured_tables(["s3://lake/orders", "orders"], CONFIG) == ["orders"]
    assert find_configured_tables(["s3://lake/orders/"], CONFIG) == ["orders"]
    assert find_configured_tables([SECRET], CONFIG) == ["secret"]
    assert find_configured_tables(["lake:sales.orders"], CONFIG) == ["sales"]
    assert find_configured_tables(None, CONFIG) == []
    others = ("s3://lake/other", "/data", "order", "*", "ORDERS", "order*")
    for table in (*others, "lake:sales.*", "lake:sales.returns", "lake:orders"):
        with pytest.raises(Usage, match="not in the configuration") as caught:
            find_configured_tables(["orders", table], CONFIG)
        assert "any_address" in str(caught.value)
    with pytest.raises(Usage) as caught:
        find_configured_tables(["s3://user:hunter2@lake/other"], CONFIG)
    assert "hunter2" not in str(caught.value)


def test_two_names_for_one_address_are_one_table() -> None:
    assert find_configured_tables(["again", "orders", "s3://lake/orders/"], CONFIG) == ["again"]
    every = ["orders", "{{ 7 * 6 }}", "secret", "sales"]
    assert find_configured_tables(list(CONFIG.tables), CONFIG) == every
    # The same address in another store.
    elsewhere = {"uri": "s3://lake/orders", "storage_options": {"aws_endpoint": "http://there"}}
    tables = {"orders": {"uri": "s3://lake/orders"}, "elsewhere": elsewhere}
    config = Config.model_validate({"tables": tables})
    assert find_configured_tables(["orders", "elsewhere"], config) == ["orders", "elsewhere"]


def test_any_address_where_the_configuration_says_so() -> None:
    asked = ["/tmp/x", "s3://lake/orders", "orders"]
    assert find_configured_tables(asked, ANY) == ["/tmp/x", "orders"]
    with pytest.raises(Usage, match="dash"):
        find_configured_tables(["--master=spark://elsewhere"], ANY)
    # A run names tables: the slash that means all tables below a folder goes.
    assert find_configured_tables(["/lake/other/"], ANY) == ["/lake/other"]


def test_keys_that_are_not_known_or_have_no_effect() -> None:
    params = {"tables": ["orders"], "dry_run": True}
    check_keys(None, params)
    check_keys({}, params)
    check_keys({"dry_run": True}, params)
    with pytest.raises(Usage, match=r"'dryrun'.*is 'dry_run' meant\?.*takes tables, dry_run"):
        check_keys({"tables": ["orders"], "dryrun": True}, params)
    with pytest.raises(Usage, match="unknown key 'x'") as caught:
        check_keys({"x": 1}, params)
    assert "meant" not in str(caught.value)
    with pytest.raises(Usage, match="dag_run_conf_overrides_params"):
        check_keys({"dry_run": True}, {"tables": [], "dry_run": False})


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, []), ("None", []), ("", []), (True, ["--wal"]), ("True", ["--wal"]),
     (False, ["--no-wal"]), ("False", ["--no-wal"])],
)  # fmt: skip
def test_what_is_refused_is_not_left_to_the_configuration(value: Any, words: list[str]) -> None:
    (wal,) = (declared for declared in list_options(GarbageRequest) if declared.name == "wal")
    assert build_option(wal, value) == words
