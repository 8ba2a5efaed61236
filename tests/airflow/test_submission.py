"""Jobs' processes: real ones, started, watched, ended."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from local_airflow.rest import wait_until
from memwal_airflow.processes import submission as submissions
from memwal_airflow.processes.submission import Ended, Submission, find_folder, make_folder, start

from memwal.errors import Usage

# Tells its pid and its child's, and stays until TERM.
TREE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TREE


def run(
    tmp_path: Path, code: str, *, released: bool = True, seconds_max: float = 60, label: str = "x"
) -> tuple[Submission, object]:
    made = make_folder(str(tmp_path / "runs"), label)
    command = [sys.executable, "-u", "-c", code]
    if released:
        made.release()
    process = start(made, command, dict(os.environ), seconds_max=seconds_max)
    return made, process


def wait_ended(submission: Submission, seconds_max: float = 60) -> Ended:
    return wait_until("the job's end", submission.read_end, seconds_max)


def lines(submission: Submission) -> list[str]:
    return (submission.folder / "log.txt").read_text().splitlines()


def child_of(submission: Submission) -> psutil.Process:
    def look() -> psutil.Process | None:
        log = submission.folder / "log.txt"
        told = log.read_text().split() if log.exists() else []
        return psutil.Process(int(told[1])) if len(told) >= 2 else None

    return wait_until("the child's pid", look, 60)


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_it_runs_to_its_end(tmp_path: Path) -> None:
    made, _ = run(tmp_path, "import sys; print('hello'); print('oops', file=sys.stderr); exit(5)")
    assert wait_ended(made) == Ended(exit_code=5)
    assert made.read_remaining_lines() == ["hello", "oops"]
    assert made.read_last_line() == "oops"


def test_the_folder_is_private_and_goes(tmp_path: Path) -> None:
    made, _ = run(tmp_path, "pass", label="dag/with odd:name")
    assert made.folder.stat().st_mode & 0o077 == 0
    assert made.folder.parent.stat().st_mode & 0o077 == 0
    assert made.folder.name.startswith("dag-with-odd-name-")
    wait_ended(made)
    made.remove()
    assert not made.folder.exists()


def test_cancelling_ends_the_whole_tree(tmp_path: Path) -> None:
    made, _ = run(tmp_path, TREE)
    child = child_of(made)
    made.cancel()
    assert wait_ended(made).why == "cancelled"
    assert is_gone(child)


def test_a_deaf_tree_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "GRACE_SECONDS", 1.0)
    made, _ = run(tmp_path, DEAF)
    child = child_of(made)
    made.cancel()
    assert wait_ended(made) == Ended(exit_code=-9, why="cancelled")
    assert is_gone(child)


def test_a_job_ends_with_the_one_that_waits_for_it(tmp_path: Path) -> None:
    made, process = run(tmp_path, TREE, released=False)
    child = child_of(made)
    process.stdin.close()
    assert wait_ended(made).why == "detached"
    assert is_gone(child)


def test_a_job_that_was_released_does_not(tmp_path: Path) -> None:
    made, process = run(tmp_path, TREE, released=False)
    child = child_of(made)
    made.release()
    process.stdin.close()
    time.sleep(1)
    assert made.read_end() is None
    made.cancel()
    assert wait_ended(made).why == "cancelled"
    assert is_gone(child)


def test_a_job_that_nobody_watches_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "UNWATCHED_SECONDS_MAX", (60.0, 3.0))
    made, _ = run(tmp_path, TREE)
    child = child_of(made)
    for _ in range(16):
        made.mark_watched()
        time.sleep(0.25)
    assert made.read_end() is None
    assert wait_ended(made).why == "unwatched"
    assert is_gone(child)


def test_a_job_that_nobody_ever_watched_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submissions, "UNWATCHED_SECONDS_MAX", (0.5, 60.0))
    made, _ = run(tmp_path, TREE)
    assert wait_ended(made).why == "unwatched"


def test_a_job_whose_folder_is_taken_away_ends(tmp_path: Path) -> None:
    made, process = run(tmp_path, TREE)
    child = child_of(made)
    made.remove()
    process.wait(timeout=60)
    assert is_gone(child)


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "own").mkdir(mode=0o700)
    link.symlink_to(tmp_path / "own")
    for directory in (shared, link):
        with pytest.raises(Usage, match="nobody else"):
            make_folder(str(directory), "x")


def test_a_detached_job_lives_on(tmp_path: Path) -> None:
    code = "import subprocess, sys; sys.path[:0] = sys.argv[1:2]\n"
    code += "import tests.airflow.test_submission as t; from pathlib import Path\n"
    code += "made, _ = t.run(Path(sys.argv[2]), 'import time; time.sleep(1); print(42)')\n"
    code += "print(made.folder)"
    paths = os.pathsep.join(filter(None, sys.path))
    starter = psutil.Popen(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=-1,
        text=True,
    )
    folder = starter.communicate(timeout=60)[0].strip()
    assert starter.returncode == 0
    made = Submission(folder)
    assert wait_ended(made) == Ended(exit_code=0)
    assert made.read_remaining_lines() == ["42"]


def test_time_runs_out(tmp_path: Path) -> None:
    made, _ = run(tmp_path, TREE, seconds_max=4)
    child = child_of(made)
    assert wait_ended(made).why == "timed_out"
    assert is_gone(child)


def test_a_command_that_is_missing(tmp_path: Path) -> None:
    made = make_folder(str(tmp_path), "x")
    start(made, ["/no/such/memwal"], dict(os.environ), seconds_max=9)
    assert wait_ended(made).exit_code == 127
    assert "/no/such/memwal" in (made.read_last_line() or "")


def test_a_supervisor_that_died_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "SILENCE_SECONDS_MAX", 8.0)
    made, process = run(tmp_path, "import time; time.sleep(600)")
    wait_until("a heartbeat", lambda: (made.folder / "heartbeat").exists(), 60)
    assert made.check_heartbeat() is None
    jobs = wait_until("the job", psutil.Process(process.pid).children, 60)
    process.kill()
    process.wait()
    assert wait_until("silence", made.check_heartbeat, 60) == Ended(exit_code=-1, why="lost")
    (job,) = jobs
    assert wait_until("the job's end", lambda: is_gone(job), 60)


def test_log_lines_come_whole_and_once(tmp_path: Path) -> None:
    made = make_folder(str(tmp_path), "x")
    log = made.folder / "log.txt"
    assert made.read_new_lines() == []
    log.write_bytes(b"one\ntw")
    assert made.read_new_lines() == ["one"]
    assert made.read_new_lines() == []
    with log.open("ab") as more:
        more.write(b"o\n\xff\nrest")
    assert made.read_new_lines() == ["two", "�"]
    assert made.read_remaining_lines() == ["rest"]


def test_what_a_job_complains_of_is_not_its_last_word(tmp_path: Path) -> None:
    made = make_folder(str(tmp_path), "x")
    log = made.folder / "log.txt"
    log.write_text("Usage: …\n\nError: No such option: --x\nINFO ShutdownHookManager: Deleting\n")
    assert made.read_last_line() == "Error: No such option: --x"
    log.write_text("one\ntwo\n\n")
    assert made.read_last_line() == "two"


def test_an_endless_line_does_not_block_the_rest(tmp_path: Path) -> None:
    made = make_folder(str(tmp_path), "x")
    size = submissions.LOG_BYTES_PER_READ_MAX
    (made.folder / "log.txt").write_bytes(b"x" * (size * 2) + b"\nlast\n")
    assert sum(len(line) for line in made.read_remaining_lines()) == size * 2 + len("last")
    assert made.read_remaining_lines() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\xff"])
def test_a_report_that_is_none(tmp_path: Path, text: str) -> None:
    made = make_folder(str(tmp_path), "x")
    assert made.read_report() is None
    made.report_file.write_text(text)
    assert made.read_report() is None


def test_a_report(tmp_path: Path) -> None:
    made = make_folder(str(tmp_path), "x")
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


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "/etc", "other", "x-0123456789ab.run"])
def test_a_folder_is_found_again_by_a_name_that_is_its_own(tmp_path: Path, name: str) -> None:
    made = make_folder(str(tmp_path / "runs"), "dag/task one")
    found = find_folder(str(tmp_path / "runs"), made.folder.name)
    assert found is not None
    assert found.folder == made.folder
    (tmp_path / "other").mkdir()
    (tmp_path / "runs" / "x-0123456789ab.run").symlink_to(tmp_path / "other")
    assert find_folder(str(tmp_path / "runs"), name) is None
