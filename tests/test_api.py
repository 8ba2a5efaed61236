"""The Python API: what it exports is documented, and what is documented works."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memwal
from memwal import errors
from tests.support import builders
from tests.support.builders import Delete, Put

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "python.md"


def named(heading: str) -> set[str]:
    """The names in the first column of the page's table below a heading."""
    _, _, rest = PAGE.read_text().partition(f"| {heading} |")
    table, _, _ = rest.partition("\n\n")
    return set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


def test_what_is_exported_is_documented_and_nothing_else_is_there() -> None:
    assert named("name") == set(memwal.__all__)
    assert all(getattr(memwal, name).__doc__ for name in memwal.__all__)
    with pytest.raises(AttributeError, match="merge_all"):
        memwal.merge_all  # noqa: B018
    methods = {
        name
        for name, value in vars(memwal.Table).items()
        if callable(value) and not name.startswith("_")
    }
    assert named("method") == methods
    assert all(getattr(memwal.Table, name).__doc__ for name in methods)


@pytest.mark.nightly
def test_types_are_shipped(tmp_path: Path) -> None:
    assert (ROOT / "memwal" / "py.typed").is_file()
    code = (
        "import memwal\n"
        "table = memwal.open_table('t')\n"
        "reveal_type(table.merge())\n"
        "reveal_type(table.merge(dry_run=True, until_generation=3))\n"
        "reveal_type(table.status().shards[0].pending_generations)\n"
        "table.merge(generations=3)\n"
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("mypy"), "--cache-dir", "/dev/null",
         "--ignore-missing-imports", "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    told = re.findall(r'Revealed type is "(?:\w+\.)*(\w+)', done.stdout)
    assert told == ["MergeTableReport", "MergeTableReport", "tuple"], done.stdout
    assert 'Unexpected keyword argument "generations"' in done.stdout


@pytest.mark.parametrize(
    ("code", "outcome", "kind"),
    [
        (2, "failed", errors.Usage),
        (4, "held", errors.LeaseHeld),
        (4, "failed", errors.LostRace),
        (5, "refused", errors.Refused),
        (6, "partial", errors.PartlyFailed),
        (6, "failed", errors.PartlyFailed),
        (7, "refused", errors.Unsupported),
        (8, "failed", errors.Corruption),
        (1, "failed", errors.MemWalError),
    ],
)
def test_an_exit_code_is_an_error(code: int, outcome: str, kind: type[errors.MemWalError]) -> None:
    error = errors.error_of(code, outcome, "why")
    assert (type(error), str(error), error.exit_code) == (kind, "why", code)


# ---- on real tables


@pytest.fixture
def made(tmp_path: Path) -> builders.Table:
    """A table with two generations to merge, as `events.lance` in the current folder."""
    uri = tmp_path / "events.lance"
    table = builders.make_table(uri, rows=range(5), indexed=True, maintained=True)
    table.flush(table.shards[0], Put([1, 7], 1))
    table.flush(table.shards[0], Put([8], 2), Delete([0]))
    return table


@pytest.mark.integration
def test_the_readme_s_example(
    made: builders.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["2 rows inserted", "3 rows match"]
    builders.check_merged(made)


@pytest.mark.integration
def test_every_job_on_a_real_table(made: builders.Table) -> None:
    table = memwal.open_table(made.uri, engine="local")
    planned = table.merge(dry_run=True)
    assert [shard.generations for shard in planned.shards] == [2]
    assert table.status().shards[0].pending_generations == (1, 2)

    merged = table.merge()
    assert (merged.outcome, merged.shards[0].rows_inserted) == ("done", 2)
    builders.check_merged(made)
    assert table.merge().outcome == "nothing_to_do"
    assert [index.unindexed_rows_after for index in table.index_catchup().indexes] == [0]
    assert table.snapshot().num_shards == 1
    assert {item.action for item in table.garbage().items} <= {"drop", "keep"}
    assert table.compaction().outcome == "done"
    assert table.maintain().outcome == "nothing_to_do"
    assert all(check.ok for check in table.verify().checks)
    assert table.read(columns=["k"]).read_all().num_rows == 6


@pytest.mark.integration
def test_what_goes_wrong_is_raised(made: builders.Table, tmp_path: Path) -> None:
    table = memwal.open_table(made.uri, engine="local")

    def refuse(kind: type[errors.MemWalError], call: Any, **options: Any) -> errors.MemWalError:
        with pytest.raises(kind) as raised:
            call(**options)
        return raised.value

    refuse(errors.Usage, table.merge, generations_per_commit_max=0)
    refuse(errors.Usage, table.merge, until_generation=0)
    refuse(errors.Usage, table.merge, shards=["x"])
    refuse(errors.Usage, table.garbage, retention_seconds=-1.0, allow_short_retention=True)
    refuse(errors.Usage, table.maintain, grace_seconds=float("nan"))
    refuse(errors.Usage, memwal.open_table, uri=made.uri, engine="sparkle")
    refuse(errors.Usage, table.index_catchup, method="none")
    refuse(errors.Refused, table.garbage, execute=True, retention_seconds=5.0)
    away = refuse(errors.NotATable, memwal.open_table(str(tmp_path / "away")).status)
    assert getattr(away.report, "outcome", None) == "failed"

    shutil.rmtree(next(Path(made.uri).glob("_mem_wal/*/*_gen_1")))
    broken = refuse(errors.MemWalError, table.merge)
    assert broken.exit_code in (1, 8)
    assert getattr(broken.report, "shards", ())[0].error in str(broken)


@pytest.mark.integration
def test_values_are_taken_as_people_write_them(made: builders.Table) -> None:
    table = memwal.open_table(made.uri, engine="local", memory_bytes_max="2GiB")  # type: ignore[arg-type]
    size: Any = {"bytes_per_commit_max": "1MiB"}
    assert table.merge(dry_run=True, **size).outcome == "done"
    age: Any = {"retention_seconds": "7d"}
    assert table.garbage(dry_run=True, **age).outcome == "nothing_to_do"
    assert table.checkpoint("c", expires_seconds="7d", dry_run=True).outcome == "done"
    version: Any = str(made.dataset.version)
    options: Any = {"version": version, "limit": "2", "merged_only": True}
    keys = table.read(columns="k", **options).read_all().to_pylist()
    assert [list(key) for key in keys] == [["k"], ["k"]]
    assert table.erase(keys=[*keys, keys[0]]).keys == 2
    one: Any = keys[0]
    assert table.erase(key=one).keys == 1


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "values", "said"),
    [
        ("maintain", {"retention_seconds": 7}, "pass allow_short_retention if"),
        ("maintain", {"retention_seconds": "long"}, "retention_seconds 'long': expected seconds"),
        ("garbage", {"execute": "yes"}, "execute 'yes': expected True or False"),
        ("schema", {"rename": "k"}, "rename: expected names with values"),
        ("merge", {"shards": 5}, "shards 5: expected a text, or several"),
        ("read", {"nearest": {"k": 1}}, "nearest: .*column"),
        ("read", {"search": "words"}, "expected a memwal.Search, or a dict"),
        ("read", {"version": "last"}, "version 'last': expected a number"),
        ("changes", {}, "one of since, checkpoint and cursor"),
        ("erase", {}, "either key or keys"),
        ("erase", {"keys": [{"x": 1}]}, r"the key columns \(k\)"),
        ("checkpoint", {"name": "c", "expires_seconds": "x"}, "expires_seconds 'x': expected"),
    ],
)
def test_a_value_that_is_wrong_is_called_by_its_keyword(
    made: builders.Table, method: str, values: Any, said: str
) -> None:
    with pytest.raises(errors.MemWalError, match=said):
        getattr(memwal.open_table(made.uri, engine="local"), method)(**values)


@pytest.mark.integration
def test_a_configuration_that_is_named_counts(made: builders.Table, tmp_path: Path) -> None:
    config = tmp_path / "lake.toml"
    config.write_text(f'[tables.t]\nuri = "{made.uri}"\ngenerations_per_commit_max = 1\n')
    table = memwal.open_table("t", config=str(config), engine="local")
    assert (table.name, repr(table)) == ("t", "Table('t')")
    assert table.merge().shards[0].commits == 2
