"""Errors that name Python's arguments."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import memwal
import memwal.api
from memwal.errors import Usage
from memwal.ingest import open_writer
from memwal.run.keywords import made_for_python, name_arguments, raises_for_python


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("pass --allow-holes if not", "pass allow_holes=True if not"),
        ("--retention first; --wal", "retention_seconds first; wal=True"),
        ("run it without --no-lease", "run it without lease=False"),
        ("(--missing-as-null does)", "(missing_as_null=True does)"),
        ("`memwal merge T --shard X` or --shard", "`memwal merge T --shard X` or shard"),
        ("a -- b, a--b, --, --X", "a -- b, a--b, --, --X"),
    ],
)
def test_options_become_arguments_and_commands_stay(text: str, wanted: str) -> None:
    assert name_arguments(text) == wanted
    assert name_arguments(wanted) == wanted


def test_errors_are_reworded_where_they_leave() -> None:
    @made_for_python
    class Thing:
        def __init__(self, name: str = "--all") -> None:
            self._check(name)

        def run(self) -> None:
            """Runs."""
            self._check("--no-lease")

        def _check(self, name: str) -> None:
            if name != "fine":
                raise Usage(f"not {name}")

    with pytest.raises(Usage, match=r"^not all$"):
        Thing()
    thing = Thing("fine")
    with pytest.raises(Usage, match=r"^not lease=False$"):
        thing.run()
    assert Thing.run.__doc__ == "Runs."
    with pytest.raises(KeyError, match="--all"):
        raises_for_python({}.__getitem__)("--all")


_JOBS = ("jobs/merge", "jobs/garbage", "jobs/snapshot", "jobs/checkpoint", "rows")
_FILES = (
    "ingest/values/shape.py",
    "ingest/routing.py",
    "ingest/target.py",
    "run/stores.py",
    "run/policy_choice.py",
)
_TEXT = re.compile(r'"(?:[^"`]|`[^`"]*`)*"')


def test_what_texts_name_exists() -> None:
    """Each option that an error of the Python API may name is an argument there."""
    known = set()
    for kind in (memwal.Table, memwal.open_table, open_writer):
        members = [kind, *(vars(kind).values() if inspect.isclass(kind) else ())]
        for member in filter(callable, members):
            known |= set(inspect.signature(member).parameters)
    root = Path(memwal.__file__).parent
    files = [root / name for name in _FILES]
    files += [file for name in _JOBS for file in (root / name).rglob("*.py")]
    said = {
        option
        for file in files
        for text in _TEXT.findall(file.read_text())
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", re.sub("`[^`]*`", "", text))
    }
    unknown = {option for option in said if name_arguments(option).split("=")[0] not in known}
    assert len(said) > 10
    assert unknown <= {"--json"}, "not in Python: word these otherwise, or take them there"
