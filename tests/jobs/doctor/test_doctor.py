"""The doctor: what is wrong with a store is found, and nothing of it stays there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from memwal.cli.app import app
from memwal.clock import SystemClock
from memwal.errors import AlreadyExists, BadCredentials, MemWalError, StoreUnavailable, Unsupported
from memwal.format import layout
from memwal.jobs.doctor import (
    FOLDER,
    TRIALS,
    Check,
    Doctor,
    ScratchFolder,
    judge_clock,
    judge_race,
    sum_up,
)
from memwal.ports import DeleteResult, Objects
from memwal.store.objects.opening import open_objects
from memwal.testing import Call, HookedObjects, MemoryObjects
from tests.faults.s3proxy import S3Proxy, Toxics
from tests.support import builders
from tests.support.s3server import S3Server

T = TypeVar("T")
Hook = Callable[[Call, Callable[[], Any], MemoryObjects], Any]
NAMES = "put_if_absent put_race read_after_put list_after_put range_read delete clock permissions"


@dataclass(kw_only=True)
class Folder(ScratchFolder):
    """A scratch folder in memory, whose calls `hook` sees."""

    hook: Hook = lambda call, effect, inner: effect()
    inner: MemoryObjects = field(default_factory=lambda: MemoryObjects(clock=SystemClock()))

    @property
    def objects(self) -> Objects:  # type: ignore[override]
        def struck(call: Call, effect: Callable[[], T]) -> T:
            answer: T = self.hook(call, effect, self.inner)
            return answer

        return HookedObjects(self.inner, struck)

    def use_lance(self) -> None:
        self.objects.put("table/data", b"rows")

    def remove(self, paths: Any) -> int:
        with_all = [*paths, *self.inner.bucket.objects]
        try:
            return len(self.objects.delete(with_all).failed)
        except MemWalError:
            return len(self.inner.bucket.objects)


def examine(hook: Hook) -> tuple[dict[str, Check], Folder, int, Doctor]:
    """The checks by name, what is left, and the exit code."""
    folder = Folder(hook=hook)
    doctor = Doctor(scratch=folder, clock=SystemClock())
    checks, error = doctor.examine()
    assert [check.name for check in checks] == list(TRIALS)
    return {c.name: c for c in checks}, folder, sum_up(checks, error)[1], doctor


def left(folder: Folder) -> Sequence[str]:
    return sorted(folder.inner.bucket.objects)


# ---- stores that lie, each in its own way


def no_condition(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
    if call.operation == "put_if_absent":
        return inner.put(call.paths[0], call.data or b"")
    return effect()


def looks_and_then_stores() -> Hook:
    """Two racers are told that they have won; who puts alone meets the condition."""
    told: dict[str, int] = {}

    def hook(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
        try:
            return effect()
        except AlreadyExists:
            path = call.paths[0]
            if call.operation == "put_if_absent" and path.startswith("race"):
                told[path] = told.get(path, 0) + 1
                if told[path] == 1:
                    return None
            raise

    return hook


def stores_the_loser(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
    try:
        return effect()
    except AlreadyExists:
        if call.paths[0].startswith("race"):
            inner.put(call.paths[0], call.data or b"")
        raise


def remembers_what_was_missing() -> Hook:
    """A cache before the store: who asked before the put hears the old answer once more."""
    missing: set[str] = set()

    def hook(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
        answer = effect()
        if call.operation == "exists":
            if answer is False:
                missing.add(call.paths[0])
            elif call.paths[0] in missing:
                missing.discard(call.paths[0])
                return False
        return answer

    return hook


def reads_what_was_replaced() -> Hook:
    first: dict[str, bytes] = {}

    def hook(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
        answer = effect()
        return first.setdefault(call.paths[0], answer) if call.operation == "get" else answer

    return hook


def lists_late(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
    return iter(()) if call.operation == "list" else effect()


def lists_what_is_gone() -> Hook:
    before: list[Any] = []

    def hook(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
        answer = effect()
        if call.operation == "list" and call.paths == ("listed",):
            before[:] = before or answer
            return iter(before)
        return answer

    return hook


def hides_folders(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
    return [] if call.operation == "list_folders" else effect()


def counts_tails_from_the_start(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
    if call.operation != "get_tail":
        return effect()
    data = inner.get(call.paths[0])
    return data[:40], len(data)


def keeps_what_is_deleted(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
    if call.operation == "delete" and any(path.startswith("deleted") for path in call.paths):
        return DeleteResult(deleted=len(call.paths))
    return effect()


def deletes_too_much(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
    if call.operation == "delete" and "deleted/none" in call.paths:
        inner.delete([*inner.bucket.objects])
    return effect()


def is_an_hour_off(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
    answer = effect()
    if call.operation != "list":
        return answer
    hour = 3600 * 1_000_000_000
    return iter([replace(info, modified_at_nanos=info.modified_at_nanos - hour) for info in answer])


def test_a_sound_store_passes_and_holds_nothing_more() -> None:
    checks, folder, code, _ = examine(lambda call, effect, inner: effect())
    assert (code, {check.ok for check in checks.values()}) == (0, {True})
    assert left(folder) == []
    assert NAMES.split() == [name for name in checks if name != "lance"]


LIARS: dict[str, tuple[Hook, set[str]]] = {
    "ignores conditions": (no_condition, {"put_if_absent", "put_race"}),
    "looks and then stores": (looks_and_then_stores(), {"put_race"}),
    "stores the loser's": (stores_the_loser, {"put_race"}),
    "caches what was missing": (remembers_what_was_missing(), {"read_after_put"}),
    "caches what was replaced": (reads_what_was_replaced(), {"read_after_put"}),
    "lists late": (lists_late, {"list_after_put"}),
    "lists what is gone": (lists_what_is_gone(), {"list_after_put"}),
    "hides folders": (hides_folders, {"list_after_put"}),
    "counts tails from the start": (counts_tails_from_the_start, {"range_read"}),
    "keeps what is deleted": (keeps_what_is_deleted, {"delete"}),
    "deletes too much": (deletes_too_much, {"delete"}),
    "an hour off": (is_an_hour_off, {"clock"}),
}


@pytest.mark.parametrize("case", LIARS)
def test_a_store_that_lies_is_found_out(case: str) -> None:
    hook, wrong = LIARS[case]
    checks, folder, code, _ = examine(hook)
    assert {name for name, check in checks.items() if check.ok is False} == wrong, checks
    assert code == 7
    assert checks["lance"].ok is None
    if case != "keeps what is deleted":
        assert left(folder) == []


# ---- what is refused


def refuse(*operations: str) -> Hook:
    def hook(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
        if call.operation in operations:
            raise BadCredentials(f"{call.operation}: access refused")
        return effect()

    return hook


ALL = ("list", "list_folders", "get", "get_range", "get_tail", "exists")
ALL = (*ALL, "put", "put_if_absent", "delete")


def test_credentials_that_may_do_nothing_are_refused() -> None:
    checks, _, code, doctor = examine(refuse(*ALL))
    assert (code, checks["permissions"].ok, checks["put_race"].ok) == (2, False, None)
    assert doctor.left == 0


def test_who_may_not_delete_is_told_what_stays() -> None:
    checks, folder, code, doctor = examine(refuse("delete"))
    assert {name for name, check in checks.items() if check.ok is False} == {
        "delete",
        "permissions",
    }
    assert checks["permissions"].detail.startswith("garbage can't work here: delete is refused")
    assert (code, checks["put_race"].ok, checks["list_after_put"].ok) == (7, True, True)
    assert doctor.left == len(left(folder)) > 0


def test_where_nothing_may_be_put_nothing_is_tried() -> None:
    checks, folder, code, doctor = examine(refuse("put", "put_if_absent"))
    assert {name for name, check in checks.items() if check.ok is not None} == {"permissions"}
    assert checks["permissions"].detail.startswith("a merge and garbage can't work here: create")
    assert (code, doctor.left, left(folder)) == (7, 0, [])


@pytest.mark.parametrize(
    ("number", "code", "ok"),
    [
        (errno.EROFS, 7, False),
        (errno.EACCES, 7, False),
        (errno.EPERM, 7, False),
        (errno.ENOSPC, 1, None),
        (errno.EIO, 1, None),
    ],
    ids=lambda found: errno.errorcode.get(found, "") if found else "",
)
def test_a_disk_that_says_no_is_not_one_that_is_full(
    number: int, code: int, ok: bool | None
) -> None:
    def fail(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
        if call.operation in ("put", "put_if_absent"):
            raise StoreUnavailable(os.strerror(number)) from OSError(number, "")
        return effect()

    checks, folder, found, _ = examine(fail)
    assert (found, checks["permissions"].ok) == (code, ok)
    assert os.strerror(number) in checks["permissions"].detail
    assert left(folder) == []


def test_a_store_that_goes_away_settles_nothing() -> None:
    def away(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
        if call.operation == "get_range":
            raise StoreUnavailable("get_range: gave up after 10 attempts")
        return effect()

    checks, folder, code, _ = examine(away)
    assert (code, checks["range_read"].ok, checks["put_race"].ok) == (1, None, True)
    assert "gave up after 10" in checks["range_read"].detail
    assert left(folder) == []


def test_what_is_cancelled_leaves_nothing() -> None:
    def cancel(call: Call, effect: Callable[[], Any], inner: MemoryObjects) -> Any:
        if call.operation == "get_range":
            raise KeyboardInterrupt
        return effect()

    folder = Folder(hook=cancel)
    with pytest.raises(KeyboardInterrupt):
        Doctor(scratch=folder, clock=SystemClock()).examine()
    assert left(folder) == []


def test_lance_that_can_t_work_there_is_told() -> None:
    class Refused(Folder):
        def use_lance(self) -> None:
            raise Unsupported("MW-D02", "Lance can't work here: no such option")

    doctor = Doctor(scratch=Refused(), clock=SystemClock())
    checks, error = doctor.examine()
    assert checks[-1] == Check(
        name="lance", ok=False, detail="Lance can't work here: no such option (MW-D02)"
    )
    assert sum_up(checks, error)[1] == 7


@pytest.mark.parametrize(
    ("winners", "stored", "ok"),
    [
        ([b"a"], b"a", True),
        ([b"a"], b"b", False),
        ([b"a"], None, False),
        ([b"a", b"b"], b"b", False),
        ([], b"b", None),
        ([], None, None),
    ],
)
def test_a_race_has_one_winner_whose_bytes_are_stored(
    winners: list[bytes], stored: bytes | None, ok: bool | None
) -> None:
    assert judge_race([(winners, stored)]).ok is ok


def test_clocks_may_differ_by_a_minute() -> None:
    def judge(*told: int) -> Check:
        second = 1_000_000_000
        return judge_clock(100 * second, [time * second for time in told], 101 * second)

    assert [judge(told).ok for told in (39, 40, 41, 161, 162)] == [False, True, True, True, False]
    assert [judge(100, told).ok for told in (39, 41, 162)] == [False, True, False]
    assert judge(100).detail == "the store's clock and this host's agree"
    assert judge(39).detail == "the store's clock is 61.0 s behind this host's"
    assert judge().ok is None


# ---- real stores


def run(uri: object, options: dict[str, str] | None = None, *words: str) -> tuple[Result, Any]:
    given = [f"--storage-option={k}={v}" for k, v in (options or {}).items()]
    done = CliRunner().invoke(app, ["doctor", str(uri), *given, *(words or ("--json",))])
    return done, None if words else json.loads(done.stdout)


def names_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_local_folder_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done, found = run(tmp_path)
    assert (done.exit_code, found["job"], found["outcome"]) == (0, "doctor", "done"), found
    assert all(check["ok"] is True and check["detail"] for check in found["checks"]), found
    assert names_of(tmp_path) == ["mine"]
    done, _ = run(tmp_path / "not" / "yet")
    assert done.exit_code == 0
    assert names_of(tmp_path) == ["mine"]


def test_a_table_is_tried_below_its_maintenance_folder(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(3))
    before = names_of(tmp_path)
    done, found = run(table.uri)
    assert (done.exit_code, f"/{FOLDER}/" in found["scratch"]) == (0, True), found
    assert names_of(tmp_path) == before


def test_a_link_in_the_scratch_folder_s_way_is_not_taken(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(3))
    (tmp_path / "victim").mkdir()
    way = Path(table.uri, layout.STAGING)
    way.mkdir(parents=True)
    (way / "doctor").symlink_to(tmp_path / "victim")
    done, found = run(table.uri)
    assert (done.exit_code, "symbolic link" in found["error"]) == (8, True), found
    assert names_of(tmp_path / "victim") == []


def test_people_see_what_a_check_proves_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done, _ = run(tmp_path, None, "--debug")
    assert "put_race" in done.stdout
    assert "who reads after a commit sees it" in done.stdout
    done, found = run(tmp_path / "file")
    assert (done.exit_code, found["outcome"]) == (2, "failed")
    assert "is a file" in found["error"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("quirk", "wrong"),
    [
        ("conditions", {"put_if_absent", "put_race"}),
        ("suffixes", {"range_read"}),
    ],
)
def test_an_odd_server_is_found_out(s3_server: S3Server, quirk: str, wrong: set[str]) -> None:
    bucket, options = s3_server.make_bucket(quirk), s3_server.storage_options
    done, found = run(f"s3://{bucket}", options)
    objects = open_objects(f"s3://{bucket}", options, SystemClock())
    assert list(objects.list("")) == []
    assert run(f"s3://{bucket}/x", options, "--debug")[0].exit_code == 7
    assert (done.exit_code, found["outcome"]) == (7, "failed")
    assert {check["name"] for check in found["checks"] if check["ok"] is False} == wrong


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with S3Proxy(s3_server.endpoint, 1) as proxy:
        yield proxy


@pytest.mark.nightly
@pytest.mark.integration
def test_on_s3(s3_server: S3Server, proxy: S3Proxy) -> None:
    bucket, options = s3_server.make_bucket(), proxy.options(s3_server.storage_options)
    objects = open_objects(f"s3://{bucket}", s3_server.storage_options, SystemClock())
    done, found = run(f"s3://{bucket}/a/b", options)
    assert (done.exit_code, found["error"]) == (0, None), found
    proxy.toxics = Toxics(lag_seconds=60)
    done, found = run(f"s3://{bucket}/a/b", options)
    assert (done.exit_code, found["left"]) == (7, 0)
    assert [c["name"] for c in found["checks"] if c["ok"] is False] == ["list_after_put"]
    assert list(objects.list("")) == []
    proxy.toxics = Toxics(forbidden=lambda method, key: method in ("DELETE", "POST"))
    done, found = run(f"s3://{bucket}/a/b", options)
    assert (done.exit_code, found["left"] > 0) == (7, True)
    assert {c["name"] for c in found["checks"] if c["ok"] is False} == {"delete", "permissions"}
    proxy.toxics = Toxics(clock_seconds=3600)
    done, found = run(f"s3://{bucket}/a/b", options)
    (wrong,) = [check for check in found["checks"] if check["ok"] is False]
    assert (done.exit_code, wrong["name"]) == (7, "clock")
    assert "ahead of this host's" in wrong["detail"]
    proxy.toxics = Toxics(forbidden=lambda method, key: True)
    assert run(f"s3://{bucket}/a/b", options)[0].exit_code == 2
    done, found = run("s3://no-such-bucket/x", s3_server.storage_options)
    assert (done.exit_code, found["outcome"]) == (2, "failed")
