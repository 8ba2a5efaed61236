"""Local files that are there whole or not at all, whoever else writes beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memwal.run.process import whole_file as module
from memwal.run.process.whole_file import whole_file
from tests.support import builders
from tests.support.nursery import run_memwal


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    with whole_file(target) as one:
        one.write(b"one, " * 1000)
        with whole_file(target) as two:
            two.write(b"two")
        assert target.read_bytes() == b"two"
        one.write(b"end")
    assert target.read_bytes() == b"one, " * 1000 + b"end"
    assert list(tmp_path.iterdir()) == [target]


def test_after_an_error_all_is_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(b"before")
    with pytest.raises(ValueError, match="midway"), whole_file(target) as out:
        out.write(b"half")
        raise ValueError("midway")
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_what_lies_there_already_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can foresee the name; if somebody did, it would be no use."""
    theirs = tmp_path / "theirs"
    (tmp_path / ".report.json.known.partial").symlink_to(theirs)
    monkeypatch.setattr(module.SystemClock, "new_id", lambda self: "known")
    with pytest.raises(FileExistsError), whole_file(tmp_path / "report.json"):
        pass
    assert not theirs.exists()


def test_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    target = tmp_path / ("ü" * 120)
    with whole_file(target) as out:
        out.write(b"x")
    assert target.read_bytes() == b"x"


@pytest.mark.integration
@pytest.mark.parametrize(("option", "name"), [("--report", "done.json"), ("--output", "rows.csv")])
def test_the_commands_write_through_nobody_s_link(tmp_path: Path, option: str, name: str) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(3))
    folder = tmp_path / "shared"
    folder.mkdir()
    theirs = tmp_path / "theirs"
    (folder / f".{name}.partial").symlink_to(theirs)
    ran = run_memwal("read", table.uri, option, folder / name)
    assert ran.returncode == 0, ran.stderr
    assert (folder / name).stat().st_size > 10
    assert not theirs.exists()
    assert {p.name for p in folder.iterdir()} == {name, f".{name}.partial"}
