"""A job's folder and process: what is read of it, and that it ends; needs no Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from memwal_airflow.processes import submission as submissions
from memwal_airflow.processes.process import Runner, read_messages
from memwal_airflow.processes.submission import Ended, Submission, find_folder, make_folder, start

from memwal.errors import Usage

# Tells its child's pid, and stays until TERM; a deaf one until KILL.
TREE = "{trap}sh -c '{trap}while :; do sleep 0.1; done' & echo $! > {child}; wait; sleep 600"


@pytest.fixture
def made(tmp_path: Path) -> Submission:
    return make_folder(str(tmp_path / "runs"), "dag/with odd:name")


def wait_for(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
    return found


# ---- the folder


def test_the_folder_is_private_and_goes(made: Submission) -> None:
    assert made.folder.stat().st_mode & 0o077 == 0
    assert made.folder.parent.stat().st_mode & 0o077 == 0
    assert made.folder.name.startswith("dag-with-odd-name-")
    made.remove()
    assert not made.folder.exists()


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "own").mkdir(mode=0o700)
    link.symlink_to(tmp_path / "own")
    for directory in (shared, link):
        with pytest.raises(Usage, match="nobody else"):
            make_folder(str(directory), "x")


def test_log_lines_come_whole_and_once(made: Submission) -> None:
    log = made.folder / "log.txt"
    assert made.read_new_lines() == []
    log.write_bytes(b"one\ntw")
    assert made.read_new_lines() == ["one"]
    assert made.read_new_lines() == []
    with log.open("ab") as more:
        more.write(b"o\n\xff\nrest")
    assert made.read_new_lines() == ["two", "�"]
    assert made.read_remaining_lines() == ["rest"]


def test_what_a_job_complains_of_is_not_its_last_word(made: Submission) -> None:
    log = made.folder / "log.txt"
    log.write_text("Usage: …\n\nError: No such option: --x\nINFO ShutdownHookManager: Deleting\n")
    assert made.read_last_line() == "Error: No such option: --x"
    log.write_text("one\ntwo\n\n")
    assert made.read_last_line() == "two"


def test_json_lines_are_read_as_what_they_say() -> None:
    said = 'a line\n\n{"level": "error", "message": "t: gone"}\n{"message": 1}\n{torn'
    assert read_messages(said) == ["a line", "t: gone", '{"message": 1}', "{torn"]


def test_an_endless_line_does_not_block_the_rest(made: Submission) -> None:
    size = submissions.LOG_BYTES_PER_READ_MAX
    (made.folder / "log.txt").write_bytes(b"x" * (size * 2) + b"\nlast\n")
    assert sum(len(line) for line in made.read_remaining_lines()) == size * 2 + len("last")
    assert made.read_remaining_lines() == []


def test_a_report_and_what_is_none(made: Submission) -> None:
    assert made.read_report() is None
    for text in ("", "{", "[]", '"x"', "\xff"):
        made.report_file.write_text(text)
        assert made.read_report() is None
    made.report_file.write_text(json.dumps({"outcome": "done"}))
    assert made.read_report() == {"outcome": "done"}


def test_old_folders_go_when_a_new_one_comes(tmp_path: Path) -> None:
    old, young, ended = (make_folder(str(tmp_path), name) for name in ("old", "young", "ended"))
    (ended.folder / "exit.json").write_text('{"exit_code": 0, "why": null}')
    (tmp_path / "somebody-elses").mkdir()
    past = time.time() - submissions.FOLDER_AGE_SECONDS_MAX - 60
    for folder in (old.folder, ended.folder, tmp_path / "somebody-elses"):
        (folder / "heartbeat").touch()
        os.utime(folder / "heartbeat", (past, past))
    (young.folder / "heartbeat").touch()
    make_folder(str(tmp_path), "new")
    assert not old.folder.exists()
    assert young.folder.exists()
    assert (tmp_path / "somebody-elses").exists()
    # Its task may still come for the result.
    assert ended.folder.exists()
    past = time.time() - submissions.RESULT_AGE_SECONDS_MAX - 60
    os.utime(ended.folder / "heartbeat", (past, past))
    make_folder(str(tmp_path), "new")
    assert not ended.folder.exists()


def test_a_folder_is_found_again_by_a_name_that_is_its_own(
    made: Submission, tmp_path: Path
) -> None:
    runs = str(tmp_path / "runs")
    found = find_folder(runs, made.folder.name)
    assert found is not None
    assert found.folder == made.folder
    (tmp_path / "other").mkdir()
    (tmp_path / "runs" / "x-0123456789ab.run").symlink_to(tmp_path / "other")
    for name in ("", ".", "..", "../other", "/etc", "other", "x-0123456789ab.run"):
        assert find_folder(runs, name) is None


# ---- the process: all of it is nightly, as the smoke test of a DAG runs jobs


def run(made: Submission, script: str, seconds_max: float = 60) -> subprocess.Popen[bytes]:
    return start(made, ["sh", "-c", script], dict(os.environ), seconds_max=seconds_max)


def run_tree(
    made: Submission, *, released: bool = True, deaf: bool = False, seconds_max: float = 60
) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """The supervisor, and the child of its job."""
    told = made.folder.parent / "child"
    if released:
        made.release()
    trap = 'trap "" TERM; ' if deaf else ""
    process = run(made, TREE.format(trap=trap, child=told), seconds_max)
    return process, psutil.Process(int(wait_for(lambda: told.exists() and told.read_text())))


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.nightly
def test_it_runs_to_its_end(made: Submission) -> None:
    run(made, "echo hello; echo oops >&2; exit 5")
    assert wait_for(made.read_end) == Ended(exit_code=5)
    assert made.read_remaining_lines() == ["hello", "oops"]
    assert made.read_last_line() == "oops"


@pytest.mark.nightly
def test_a_command_that_is_missing(made: Submission) -> None:
    start(made, ["/no/such/memwal"], dict(os.environ), seconds_max=9)
    assert wait_for(made.read_end).exit_code == 127
    assert "/no/such/memwal" in str(made.read_last_line())


@pytest.mark.nightly
def test_a_job_ends_with_the_one_that_waits_for_it(made: Submission) -> None:
    process, child = run_tree(made, released=False)
    assert process.stdin is not None
    process.stdin.close()
    assert wait_for(made.read_end).why == "detached"
    assert is_gone(child)


@pytest.mark.nightly
@pytest.mark.parametrize("deaf", [False, True])
def test_cancelling_ends_the_whole_tree(
    made: Submission, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    monkeypatch.setattr(submissions, "GRACE_SECONDS", 1.0 if deaf else 60.0)
    _, child = run_tree(made, deaf=deaf)
    made.cancel()
    assert wait_for(made.read_end) == Ended(exit_code=-9 if deaf else -15, why="cancelled")
    assert is_gone(child)


@pytest.mark.nightly
def test_a_job_that_was_released_goes_on_when_nobody_waits(made: Submission) -> None:
    process, child = run_tree(made, released=False)
    assert process.stdin is not None
    made.release()
    process.stdin.close()
    beat = made.folder / "heartbeat"
    seen = beat.stat().st_mtime_ns
    wait_for(lambda: beat.stat().st_mtime_ns > seen)
    assert made.read_end() is None
    made.cancel()
    assert wait_for(made.read_end).why == "cancelled"
    assert is_gone(child)


@pytest.mark.nightly
@pytest.mark.parametrize(("limits", "times"), [((60.0, 1.5), 4), ((0.5, 60.0), 0)])
def test_a_job_that_nobody_watches_any_more_or_ever_did_ends(
    made: Submission, monkeypatch: pytest.MonkeyPatch, limits: tuple[float, float], times: int
) -> None:
    monkeypatch.setattr(submissions, "UNWATCHED_SECONDS_MAX", limits)
    _, child = run_tree(made)
    for _ in range(times):
        made.mark_watched()
        time.sleep(0.5)
    # Longer than it may go unwatched, and it was watched.
    assert times == 0 or made.read_end() is None
    assert wait_for(made.read_end).why == "unwatched"
    assert is_gone(child)


@pytest.mark.nightly
def test_a_job_whose_folder_is_taken_away_ends(made: Submission) -> None:
    process, child = run_tree(made)
    made.remove()
    process.wait(timeout=60)
    assert is_gone(child)


@pytest.mark.nightly
def test_time_runs_out(made: Submission) -> None:
    _, child = run_tree(made, seconds_max=2)
    assert wait_for(made.read_end).why == "timed_out"
    assert is_gone(child)


@pytest.mark.nightly
def test_a_supervisor_that_died_is_noticed(
    made: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "SILENCE_SECONDS_MAX", 3.0)
    process = run(made, "exec sleep 600")
    wait_for((made.folder / "heartbeat").exists)
    assert made.check_heartbeat() is None
    (job,) = wait_for(psutil.Process(process.pid).children)
    process.kill()
    process.wait()
    assert wait_for(made.check_heartbeat) == Ended(exit_code=-1, why="lost")
    assert wait_for(lambda: is_gone(job))


# ---- a look: one command within bounds


def look(script: str, bytes_max: int = 1 << 20, monotonic: Any = time.monotonic) -> Any:
    return Runner(monotonic).run(["sh", "-c", script], os.environ, 30, bytes_max)


@pytest.mark.nightly
def test_a_look_tells_what_came_of_it() -> None:
    found = look("echo out; echo err >&2; exit 3")
    assert (found.stdout, found.stderr, found.exit_code, found.why) == (b"out\n", b"err\n", 3, None)
    flood = look("exec yes")
    assert (flood.exit_code, flood.why, flood.late) == (
        None,
        "answered with more than 1 MiB",
        False,
    )
    missing = Runner(time.monotonic).run(["/no/such"], {}, 1, 1)
    assert missing.started is False
    assert "can't start /no/such: No such file" in missing.why
    closed = Runner(time.monotonic)
    closed.close()
    assert closed.run(["true"], {}, 1, 1).started is False


@pytest.mark.nightly
def test_a_look_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    told = tmp_path / "child"

    def clock() -> float:
        """Time is up as soon as the child is there."""
        return 100.0 if told.exists() and told.read_text() else 0.0

    found = look(TREE.format(trap="", child=told), monotonic=clock)
    assert (found.exit_code, found.why, found.late) == (None, "no answer within 30 s", True)
    wait_for(lambda: not psutil.pid_exists(int(told.read_text())))
