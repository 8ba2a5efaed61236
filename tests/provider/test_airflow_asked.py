"""What a run of an Airflow DAG may be asked for; needs no Airflow."""

from __future__ import annotations

from typing import Any

import pytest
from memwal_airflow.asked import (
    NAME_CHARACTERS_MAX,
    check_keys,
    checked_name,
    checked_shard,
    checked_tables,
    command_words,
    configured_tables,
)

from memwal.config import Config
from memwal.errors import Usage

SHARD = "0c9a1b6e-5a52-4c5f-9b2e-6d0f6f0f0a01"
SECRET = "s3://user:hunter2@lake/secret"
CONFIG = Config.model_validate(
    {
        "tables": {
            "orders": {"uri": "s3://lake/orders"},
            "again": {"uri": "s3://lake/orders"},
            "{{ 7 * 6 }}": {"uri": "/data/odd"},
            "secret": {"uri": SECRET},
        }
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
        checked_name("index", name)
    assert str(caught.value).isprintable()
    with pytest.raises(Usage, match=r"^table "):
        checked_tables(["orders", name])
    with pytest.raises(Usage, match=r"^shard "):
        checked_shard(name)


def test_what_is_one() -> None:
    for name in ("orders", "a-b", "größe mit leer", "s3://lake/orders", "{{ 7 * 6 }}"):
        assert checked_name("table", name) == name
    assert checked_tables("orders") == ["orders"]
    assert checked_tables(("b", "a", "b")) == ["b", "a"]
    assert checked_tables(None) == []
    assert checked_shard(SHARD.upper()) == checked_shard(SHARD.replace("-", "")) == SHARD
    with pytest.raises(Usage, match="expected a UUID"):
        checked_shard("../../x")


def test_tables_stand_behind_a_double_dash() -> None:
    words = command_words(["--dry-run", "--config", "f"], ["orders", "s3://lake/x"])
    assert words == ["--dry-run", "--config", "f", "--", "orders", "s3://lake/x"]
    with pytest.raises(Usage, match="dash"):
        command_words([], ["orders", "--master=spark://elsewhere"])
    with pytest.raises(Usage, match="no table"):
        command_words(["--dry-run"], [])


def test_only_tables_of_the_configuration() -> None:
    assert configured_tables(["{{ 7 * 6 }}", "orders"], CONFIG) == ["{{ 7 * 6 }}", "orders"]
    # By its address a table has its own settings all the same, and is one table.
    assert configured_tables(["s3://lake/orders", "orders"], CONFIG) == ["orders"]
    assert configured_tables([SECRET], CONFIG) == ["secret"]
    assert configured_tables(None, CONFIG) == []
    for table in ("s3://lake/orders/", "s3://lake/other", "/data", "order", "*", "ORDERS"):
        with pytest.raises(Usage, match="not in the configuration") as caught:
            configured_tables(["orders", table], CONFIG)
        assert "any_address" in str(caught.value)
    with pytest.raises(Usage) as caught:
        configured_tables(["s3://user:hunter2@lake/other"], CONFIG)
    assert "hunter2" not in str(caught.value)


def test_any_address_where_the_configuration_says_so() -> None:
    asked = ["/tmp/x", "s3://lake/orders", "orders"]
    assert configured_tables(asked, ANY) == ["/tmp/x", "orders"]
    with pytest.raises(Usage, match="dash"):
        configured_tables(["--master=spark://elsewhere"], ANY)


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
