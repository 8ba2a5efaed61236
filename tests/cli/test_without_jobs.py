"""Where only memwal's base requirements are installed, as in Airflow's environment."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from memwal.errors import EXIT_UNSUPPORTED, JOBS_MODULES, MemWalError, Unsupported, unexpected

TOLD = "which jobs need, is not installed: pip install 'lance-memwal[jobs]' (MW-E04)"
NEED_LANCE = (
    *("merge T", "status T", "read T", "init T", "maintain T", "watch T", "doctor s3://lake"),
    *("ingest T rows.parquet", "submit merge T", "merge T --report s3://lake/report.json"),
)
NEED_NOTHING = ("--version", "--help", "merge --help", "schema merge", "explain W01")
CALLS = ("merge", "status", "read")
# One process for all: each would take longer to start than its command does.
TRY_ALL = f"""
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys({sorted(JOBS_MODULES)}))
from memwal.cli import main

def run(words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words.split())
        except SystemExit as done:
            return done.code or 0, out.getvalue(), err.getvalue()

def call(name):
    import memwal
    try:
        getattr(memwal.open_table("s3://lake/orders"), name)()
    except memwal.MemWalError as error:
        return error.exit_code, "", str(error)

commands, calls = json.loads(sys.argv[1])
print(json.dumps([*map(run, commands), *map(call, calls)]))
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def done() -> dict[str, Done]:
    commands = [*NEED_LANCE, "status T --json", *NEED_NOTHING]
    ran = subprocess.run(
        [sys.executable, "-c", TRY_ALL, json.dumps([commands, CALLS])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    results = itertools.starmap(Done, json.loads(ran.stdout))
    return dict(zip((*commands, *CALLS), results, strict=True))


@pytest.mark.parametrize("words", NEED_LANCE)
def test_a_command_that_needs_lance_says_what_to_install(words: str, done: dict[str, Done]) -> None:
    assert done[words].code == EXIT_UNSUPPORTED
    error = " ".join(done[words].err.split())
    assert "error: the module " in error
    assert error.endswith(f"{TOLD} what to do: memwal explain MW-E04")
    assert "Traceback" not in error


def test_json(done: dict[str, Done]) -> None:
    document = json.loads(done["status T --json"].out)
    assert document["outcome"] == "refused"
    assert document["error"].endswith(TOLD)


@pytest.mark.parametrize("words", NEED_NOTHING)
def test_what_needs_no_table_works(words: str, done: dict[str, Done]) -> None:
    assert (done[words].code, done[words].err) == (0, "")
    assert done[words].out


@pytest.mark.parametrize("name", CALLS)
def test_python(name: str, done: dict[str, Done]) -> None:
    assert done[name].code == EXIT_UNSUPPORTED
    assert done[name].err.startswith("the module ")
    assert done[name].err.endswith(TOLD)


def test_only_modules_of_the_extra_are_taken_for_missing() -> None:
    ours = unexpected(ModuleNotFoundError("…", name="google.protobuf"))
    assert isinstance(ours, Unsupported)
    assert ours.code == "MW-E04"
    other = unexpected(ModuleNotFoundError("no googly", name="googly"))
    assert type(other) is MemWalError
    assert str(other) == "unexpected ModuleNotFoundError: no googly"
