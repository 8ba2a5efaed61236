"""Storage options from the environment, and addresses that may be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memwal.cli.flags import load
from memwal.config import mask_address, read_environment_options, resolve_table
from memwal.errors import Usage

NAME = "MEMWAL_STORAGE_OPTIONS"


def test_the_flag_beats_the_environment_which_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text(
        '[defaults.storage_options]\nregion = "file"\ntoken = "file"\n'
        'endpoint = "file"\ntimeout = "${NOT_SET}"\n'
        '[tables.t]\nuri = "s3://bucket/t"\n[tables.t.storage_options]\ntoken = "table"\n'
    )
    given = {"token": "environment", "endpoint": "environment", "timeout": "environment"}
    monkeypatch.setenv(NAME, json.dumps(given))
    config, options = load(str(file), ["endpoint=flag"])
    assert resolve_table("t", config, options).storage_options == {
        "region": "file",
        "token": "environment",
        "endpoint": "flag",
        "timeout": "environment",  # it also stands in for a variable that is not set
    }


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_an_empty_variable_is_none(text: str) -> None:
    assert read_environment_options({NAME: text}) == read_environment_options({}) == {}


def test_numbers_and_bools_are_texts_as_lance_takes_them() -> None:
    given = {"allow_http": True, "virtual_hosted": False, "timeout": 30, "key": "x=y"}
    assert read_environment_options({NAME: json.dumps(given)}) == {
        "allow_http": "true",
        "virtual_hosted": "false",
        "timeout": "30",
        "key": "x=y",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("hush-hush", "expected a JSON object"),
        ('{"key": "hush-hush"', "expected a JSON object"),
        ('["hush-hush"]', "expected a JSON object"),
        ('"hush-hush"', "expected a JSON object"),
        ('{"key": ["hush-hush"]}', "'key'"),
        ('{"key": {"secret": "hush-hush"}}', "'key'"),
        ('{"key": null}', "'key'"),
        ('{"": "hush-hush"}', "''"),
        ("[" * 100_000, "expected a JSON object"),
    ],
)
def test_a_mistake_is_named_and_no_value_is_shown(text: str, named: str) -> None:
    with pytest.raises(Usage, match=named) as raised:
        read_environment_options({NAME: text})
    assert NAME in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/data/t", "/data/t"),
        ("./a@b:c/t", "./a@b:c/t"),
        ("users", "users"),
        ("s3://bucket/a/t", "s3://bucket/a/t"),
        ("s3://bucket/a@b/t", "s3://bucket/a@b/t"),
        ("s3://key:hush@bucket/t", "s3://***@bucket/t"),
        ("s3://hush@bucket/t", "s3://***@bucket/t"),
        ("s3://key:hu/sh+hush@bucket/t", "s3://***@bucket/t"),
        ("s3://bucket/t?secret=hush", "s3://bucket/t?***"),
        ("s3://key:hush@bucket/t?x=hush", "s3://***@bucket/t?***"),
        ("s3:/KEY:hush@bucket/t", "s3:/***@bucket/t"),
        ("s3:KEY:hush@bucket/t?hush", "s3:***@bucket/t?***"),
        ("S3:///KEY:hush@bucket", "S3:///***@bucket"),
        ("\t s3://key:hush@bucket/t", "\t s3://***@bucket/t"),
        ("//key:hush@bucket/t", "//***@bucket/t"),
        ("s3://bucket/t#token=hush", "s3://bucket/t?***"),
        (
            "abfss://data@account.dfs.core.windows.net/t",
            "abfss://data@account.dfs.core.windows.net/t",
        ),
        ("abfss://key:hush@account/t", "abfss://***@account/t"),
        ("abfss://data@account/t?sig=hush", "abfss://***@account/t?***"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert mask_address(address) == shown
    config, _ = load(None, [])
    table = resolve_table(address, config, {})
    assert (table.name, table.uri) == (shown, address)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("due_generations_min = 0", "due_generations_min"),
        ("due_bytes_min = 0", "due_bytes_min"),
        ("due_age_seconds_min = -1", "due_age_seconds_min"),
        ("runs_kept_max = 0", "runs_kept_max"),
        ("runs_kept_max = 4001", "runs_kept_max"),
        ("lease_seconds = 14", "lease_seconds"),
        ("lease_seconds = 3601", "lease_seconds"),
    ],
)
def test_limits_have_limits(tmp_path: Path, line: str, named: str) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text(f"[defaults]\n{line}\n")
    with pytest.raises(Usage, match=f"defaults.{named}"):
        load(str(file), [])
