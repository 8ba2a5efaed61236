"""What every Objects promises, told once and run against each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal import errors
from memwal.clock import SystemClock
from memwal.ports import PART_BYTES, Objects
from memwal.store.objects import local
from memwal.store.objects.opening import is_in_bucket, normalise_uri, open_objects
from memwal.testing import Fault, FaultyObjects, ManualClock, MemoryObjects
from tests.support.stores import ON_AZURE, ON_GCS, ON_S3, make_address

SHARD = "_mem_wal/6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11"
GENERATION = f"{SHARD}/0a1b2c3d_gen_7"
THREADS = 8


@pytest.fixture
def objects(open_any_store: Callable[[], Objects]) -> Objects:
    return open_any_store()


@pytest.mark.parametrize(
    ("uri", "found"),
    [("s3://b/x", True), ("S3://b", True), ("file:///x", False), ("/s3://x", False), ("x", False),
     ("gs://b/x", True), ("az://b/x", True), ("http://b/x", False)],
)  # fmt: skip
def test_a_report_s_address_is_told_by_its_store(uri: str, found: bool) -> None:
    assert is_in_bucket(uri) is found


def test_an_empty_store_lists_nothing(objects: Objects) -> None:
    assert [*objects.list("")] == []
    assert [*objects.list("_mem_wal")] == []
    assert [*objects.list_folders("_mem_wal")] == []


def test_listing_is_recursive_and_below_the_folder_only(objects: Objects) -> None:
    before_nanos = time.time_ns()
    for path in ("a/1", "a/b/2", "a/b/c/3", "ab/4", "5"):
        objects.put(path, path.encode())

    assert sorted(info.path for info in objects.list("")) == [
        "5",
        "a/1",
        "a/b/2",
        "a/b/c/3",
        "ab/4",
    ]
    assert {info.path: info.size_bytes for info in objects.list("a")} == {
        "a/1": 3,
        "a/b/2": 5,
        "a/b/c/3": 7,
    }
    assert sorted(info.path for info in objects.list("a/b/")) == ["a/b/2", "a/b/c/3"]
    # S3 keeps whole seconds.
    assert all(abs(info.modified_at_nanos - before_nanos) < 60 * 10**9 for info in objects.list(""))


def test_an_object_is_no_folder(objects: Objects) -> None:
    objects.put("a/b", b"")

    assert [*objects.list("a/b")] == []
    assert [*objects.list_folders("a/b")] == []
    assert [*objects.list_folders("a")] == []


def test_folders_are_listed_sorted_and_one_level_deep(objects: Objects) -> None:
    for path in ("t/z/1", "t/a/b/c/2", "t/a/3", "t/file", "u/4"):
        objects.put(path, b"x")

    assert [*objects.list_folders("t")] == ["a", "z"]
    assert [*objects.list_folders("t/a")] == ["b"]
    assert [*objects.list_folders("t/a/")] == ["b"]
    assert {"t", "u"} <= {*objects.list_folders("")}


def test_a_put_is_read_back_whole_and_replaces(objects: Objects) -> None:
    objects.put("a/b", b"one")
    assert objects.get("a/b") == b"one"

    objects.put("a/b", b"")
    assert objects.get("a/b") == b""


def test_names_survive_as_they_are(objects: Objects) -> None:
    names = ["a b", "ü", "a+b=c", "100%", "x:y", "..a", "#1", "a&b<c>"]
    for name in names:
        objects.put(f"n/{name}/{name}", name.encode())

    assert sorted(info.path for info in objects.list("n")) == sorted(f"n/{n}/{n}" for n in names)
    assert [*objects.list_folders("n")] == sorted(names)
    assert all(objects.get(f"n/{name}/{name}") == name.encode() for name in names)
    assert objects.delete(f"n/{name}/{name}" for name in names).deleted == len(names)
    assert [*objects.list("n")] == []


def test_ranges(objects: Objects) -> None:
    objects.put("a", b"0123456789")
    objects.put("empty", b"")

    assert objects.get_range("a", 0, 10) == b"0123456789"
    assert objects.get_range("a", 3, 5) == b"34"
    assert objects.get_range("a", 9, 10) == b"9"
    assert objects.get_range("a", 10, 10) == b""
    assert objects.get_range("empty", 0, 0) == b""
    for path, start, end in (("a", 5, 11), ("a", 10, 11), ("a", 20, 20), ("empty", 0, 1)):
        with pytest.raises(errors.Corruption):
            objects.get_range(path, start, end)
    for start, end in ((-1, 2), (3, 2)):
        with pytest.raises(ValueError, match="not a range"):
            objects.get_range("a", start, end)


def test_what_is_larger_than_the_caller_takes_is_not_read(objects: Objects) -> None:
    objects.put("a", b"0123456789")

    assert objects.get("a", 10) == b"0123456789"
    read = objects.counts.bytes_read
    with pytest.raises(errors.Corruption, match="a has 10 bytes; at most 9 are read"):
        objects.get("a", 9)
    assert objects.counts.bytes_read == read
    assert objects.get("a") == b"0123456789"


def test_tails(objects: Objects) -> None:
    objects.put("a", b"0123456789")
    objects.put("empty", b"")

    assert objects.get_tail("a", 3) == (b"789", 10)
    assert objects.get_tail("a", 10) == (b"0123456789", 10)
    assert objects.get_tail("a", 100) == (b"0123456789", 10)
    assert objects.get_tail("empty", 5) == (b"", 0)
    with pytest.raises(ValueError, match="not a tail length"):
        objects.get_tail("a", 0)


def test_what_is_not_there_is_missing(objects: Objects) -> None:
    objects.put("folder/a", b"x")
    for path in ("nothing", "folder", "folder/a/b", "folder/nothing"):
        with pytest.raises(errors.Missing, match=path):
            objects.get(path)
        with pytest.raises(errors.Missing):
            objects.get_range(path, 0, 1)
        with pytest.raises(errors.Missing):
            objects.get(path, 1)
        with pytest.raises(errors.Missing):
            objects.get_tail(path, 1)
        assert not objects.exists(path)


def test_exists(objects: Objects) -> None:
    objects.put("a", b"x")
    objects.put("empty", b"")

    assert objects.exists("a")
    assert objects.exists("empty")


def test_put_if_absent_creates_once(open_any_store: Callable[[], Objects]) -> None:
    one, other = open_any_store(), open_any_store()
    one.put_if_absent(f"{SHARD}/manifest/1", b"first")

    for objects in (one, other):
        with pytest.raises(errors.AlreadyExists, match="manifest/1"):
            objects.put_if_absent(f"{SHARD}/manifest/1", b"second")
        assert objects.get(f"{SHARD}/manifest/1") == b"first"
    assert [*one.list_folders("_mem_wal")] == [SHARD.removeprefix("_mem_wal/")]
    assert [info.path for info in one.list("")] == [f"{SHARD}/manifest/1"]


def test_a_deleted_name_can_be_created_again(objects: Objects) -> None:
    objects.put_if_absent("a", b"first")
    objects.delete(["a"])
    objects.put_if_absent("a", b"second")

    assert objects.get("a") == b"second"


@pytest.mark.nightly
def test_one_of_many_racing_creates_wins(open_any_store: Callable[[], Objects]) -> None:
    stores = [open_any_store() for _ in range(THREADS)]
    start = Barrier(THREADS)

    def create(number: int, path: str) -> bool:
        start.wait()
        try:
            stores[number].put_if_absent(path, bytes([number]) * 100_000)
        except errors.AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(THREADS) as threads:
        for turn in range(5):
            path = f"race/{turn}"
            won = [*threads.map(create, range(THREADS), [path] * THREADS)]

            assert sum(won) == 1
            assert stores[0].get(path) == bytes([won.index(True)]) * 100_000


PARTS = [b"a" * PART_BYTES, b"b" * PART_BYTES, b"c" * 1000]


def test_parts_make_one_object_once(objects: Objects) -> None:
    before = objects.counts.bytes_written
    objects.put_parts("data/large", PARTS)

    assert objects.counts.bytes_written - before == 2 * PART_BYTES + 1000
    assert objects.get_tail("data/large", 1001) == (b"b" + b"c" * 1000, 2 * PART_BYTES + 1000)
    assert objects.get_range("data/large", PART_BYTES - 1, PART_BYTES + 1) == b"ab"
    for others in ([b"x"], [b"x" * PART_BYTES, b"y"]):
        with pytest.raises(errors.AlreadyExists, match="data/large"):
            objects.put_parts("data/large", others)
    assert objects.get_range("data/large", 0, 1) == b"a"
    assert [info.path for info in objects.list("")] == ["data/large"]


@pytest.mark.parametrize("parts", [[], [b""], [b"few bytes"]])
def test_few_parts_make_an_object_too(objects: Objects, parts: list[bytes]) -> None:
    objects.put_parts("small", parts)

    assert objects.get("small") == b"".join(parts)


def test_parts_that_end_in_an_error_make_no_object(objects: Objects) -> None:
    def read() -> Iterator[bytes]:
        yield from PARTS[:2]
        raise errors.Missing("the source is gone")

    with pytest.raises(errors.Missing, match="the source is gone"):
        objects.put_parts("large", read())

    assert [*objects.list("")] == []
    objects.put_parts("large", PARTS)
    assert objects.get_range("large", 0, 1) == b"a"


def test_deleting_what_is_gone_counts_as_deleted(objects: Objects) -> None:
    objects.put("a/b", b"x")
    objects.put("a/c", b"x")

    result = objects.delete(["a/b", "a/nothing", "nowhere/at/all", "a/b", "a/c/below", "a"])

    assert (result.deleted, result.failed) == (5, ())
    assert [info.path for info in objects.list("")] == ["a/c"]
    assert objects.delete([]).deleted == 0


@pytest.mark.nightly
def test_more_objects_than_a_page_or_a_batch_holds(objects: Objects) -> None:
    # Azure's pages hold more than a test may wait for; deletes are no batches there.
    count = 50 if objects.uri.startswith("az:") else 1005
    paths = [f"{GENERATION}/data/{number:05d}.lance" for number in range(count)]
    with ThreadPoolExecutor(THREADS) as threads:
        [*threads.map(lambda path: objects.put(path, b"x"), paths)]
    objects.put(f"{SHARD}/manifest/1", b"x")

    assert sorted(info.path for info in objects.list(GENERATION)) == paths
    deletes_before = objects.counts.delete

    result = objects.delete(iter(paths))

    assert (result.deleted, result.failed) == (count, ())
    assert objects.counts.delete - deletes_before >= 2
    assert [info.path for info in objects.list("")] == [f"{SHARD}/manifest/1"]
    assert [*objects.list_folders(SHARD)] == ["manifest"]


def test_requests_and_bytes_are_counted(objects: Objects) -> None:
    objects.put("a", b"12345")
    objects.put_if_absent("b", b"123")
    objects.get("a")
    objects.get_range("a", 1, 3)
    objects.get_tail("a", 2)
    objects.exists("a")
    [*objects.list("")]
    objects.list_folders("")
    objects.delete(["a"])

    counts = objects.counts.as_dict()
    # Buckets answer `exists` with one byte; Azure has no ranges from the end.
    more = 2 if objects.uri.startswith("az:") else 0
    assert counts.pop("bytes_read") - more in (9, 10)
    assert counts == {
        "list": 2,
        "get": 4 + bool(more),
        "put": 2,
        "delete": 1,
        "retries": 0,
        "bytes_written": 8,
    }


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b"])
def test_a_malformed_path_never_gets_out(objects: Objects, path: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: objects.get(path),
        lambda: objects.get_range(path, 0, 1),
        lambda: objects.get_tail(path, 1),
        lambda: objects.exists(path),
        lambda: objects.put(path, b""),
        lambda: objects.put_if_absent(path, b""),
        lambda: objects.delete(["good", path]),
    ]
    if path not in ("", "a/"):
        calls += [lambda: objects.list(path), lambda: objects.list_folders(path)]
    objects.put("good", b"x")
    sent = sum(objects.counts.as_dict().values())

    for call in calls:
        with pytest.raises(ValueError, match="not a relative object path"):
            call()
    assert sum(objects.counts.as_dict().values()) == sent
    assert objects.exists("good")


@pytest.mark.integration
@pytest.mark.parametrize("scheme", ["file", ON_S3, ON_AZURE, ON_GCS])
def test_what_pylance_writes_is_seen_under_the_same_address(
    request: pytest.FixtureRequest, tmp_path: Path, scheme: str
) -> None:
    uri, options = str(tmp_path / "a ü+&='[x]"), {}
    if scheme != "file":
        place = make_address(request, scheme, "a ü+&='[x]")
        uri, options = place.uri, place.storage_options
    lance.write_dataset(pa.table({"id": [1]}), uri, storage_options=options)

    objects = open_objects(uri, options, SystemClock())

    assert {"data", "_versions"} <= {*objects.list_folders("")}
    assert [info.size_bytes > 0 for info in objects.list("_versions")].count(True) >= 1


# --- local files only ---------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "table"), {}, SystemClock())


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["put", "put_if_absent"])
def test_a_reader_sees_a_file_whole_or_not_at_all(files: Objects, method: str) -> None:
    size, reading, done = 1_000_000, Event(), Event()
    paths = ["big"] * 60 if method == "put" else [f"big/{number}" for number in range(60)]
    written: list[str] = []

    def read() -> Iterator[tuple[int, bytes, bytes]]:
        """Hunts the file that is about to appear."""
        while not done.is_set():
            reading.set()
            try:
                data = files.get(paths[len(written) % len(paths)])
            except errors.Missing:
                continue
            yield len(data), data[:1], data[-1:]

    with ThreadPoolExecutor(1) as reader:
        hunt = reader.submit(lambda: {*read()})
        assert reading.wait(60)
        for number, path in enumerate(paths):
            getattr(files, method)(path, bytes([number]) * size)
            written.append(path)
        done.set()
        seen = hunt.result()

    assert seen <= {(size, bytes([number]), bytes([number])) for number in range(len(paths))}
    assert {len(files.get(path)) for path in paths} == {size}


def test_a_crash_before_the_link_leaves_nothing_visible(
    files: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "hardlink_to", die)
        patch.setattr(Path, "unlink", die)  # nobody cleans up after a kill -9
        with pytest.raises(Killed):
            files.put_if_absent(f"{SHARD}/manifest/1", b"data")

    assert [*files.list("_mem_wal")] == []
    assert [info.path.rpartition("/")[0] for info in files.list("")] == ["_maintenance/tmp"]
    files.put_if_absent(f"{SHARD}/manifest/1", b"data")
    assert files.get(f"{SHARD}/manifest/1") == b"data"


def test_nothing_of_ours_stays_under_mem_wal(files: Objects) -> None:
    files.put_if_absent(f"{SHARD}/manifest/1", b"data")
    files.put(f"{SHARD}/manifest/hint", b"data")

    on_disk = [path for path in Path(files.uri).rglob("*") if path.is_file()]
    assert sorted(path.name for path in on_disk) == ["1", "hint"]
    assert on_disk[0].stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert {path.stat().st_nlink for path in on_disk} == {1}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_emptied_generation_folders_go_and_those_of_writers_stay(files: Objects) -> None:
    root = Path(files.uri)
    gone = [f"{GENERATION}/data/1", f"{GENERATION}/_versions/1", f"{SHARD}/wal/1"]
    gone += [f"{SHARD}/manifest/1", "data/1", "_maintenance/lease/1"]
    for path in gone:
        files.put(path, b"x")
    (root / GENERATION / "_deletions").mkdir()

    files.delete(gone)

    assert not (root / GENERATION).exists()
    for folder in (f"{SHARD}/wal", f"{SHARD}/manifest", "data", "_maintenance/lease"):
        assert (root / folder).is_dir()


def test_a_generation_folder_with_something_left_stays(files: Objects) -> None:
    files.put(f"{GENERATION}/data/1", b"x")
    files.put(f"{GENERATION}/data/2", b"x")

    files.delete([f"{GENERATION}/data/1"])

    assert [info.path for info in files.list(GENERATION)] == [f"{GENERATION}/data/2"]


def test_an_empty_folder_is_no_folder(files: Objects) -> None:
    files.put("a/b/1", b"x")
    (Path(files.uri) / "a" / "empty" / "deep").mkdir(parents=True)

    assert [*files.list_folders("a")] == ["b"]


def test_links_to_folders_are_not_followed(files: Objects, tmp_path: Path) -> None:
    files.put("a/1", b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "2").write_bytes(b"x")
    (Path(files.uri) / "a" / "link").symlink_to(tmp_path / "outside")
    (Path(files.uri) / "a" / "dangling").symlink_to(tmp_path / "nowhere")

    assert [info.path for info in files.list("a")] == ["a/1"]
    assert [*files.list_folders("a")] == []


@pytest.mark.parametrize(
    "link", ["_maintenance", "_maintenance/lease", "_maintenance/lease/1", "_maintenance/tmp"]
)
def test_what_memwal_keeps_is_neither_written_nor_read_through_a_link(
    files: Objects, tmp_path: Path, link: str
) -> None:
    elsewhere = local.LocalObjects(str(tmp_path / "elsewhere"))
    elsewhere.put("_maintenance/lease/1", b"precious")
    place = Path(files.uri) / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "elsewhere" / link)

    def there() -> dict[Path, int]:
        """Staging a file leaves its mark on the folder."""
        return {p: p.stat().st_mtime_ns for p in (tmp_path / "elsewhere").rglob("*")}

    before = there()
    calls: list[Callable[[], object]] = [
        lambda: files.put("_maintenance/lease/1", b"x"),
        lambda: files.put_if_absent("_maintenance/lease/1", b"x"),
    ]
    if link != local._STAGING:
        calls.append(lambda: files.get("_maintenance/lease/1"))
    for call in calls:
        with pytest.raises(errors.Corruption, match=f"{place} is a symbolic link"):
            call()
    assert there() == before


@pytest.mark.parametrize("code", sorted(local._NO_HARD_LINKS))
def test_a_file_system_without_hard_links_is_unsupported(
    files: Objects, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(errors.Unsupported, match="cannot hard-link"):
        files.put_if_absent("a/1", b"x")
    assert [*files.list("")] == []


def test_other_faults_of_the_file_system_name_the_path(files: Objects) -> None:
    files.put("a", b"x")

    with pytest.raises(errors.StoreUnavailable, match=f"{files.uri}/a/b: File exists"):
        files.put("a/b", b"x")


def test_a_delete_that_the_file_system_refuses_is_returned(
    files: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put("a", b"x")
    files.put("b", b"x")
    unlink = os.unlink

    def refuse_a(path: str, **options: Any) -> None:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse_a)
    result = files.delete(["a", "b"])

    assert (result.deleted, result.failed) == (1, (("a", "Permission denied"),))


# --- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("/a/b/", "/a/b"),
        ("/a/./b/../c", "/a/c"),
        ("file:///a/b%20c/", "/a/b c"),
        ("file://localhost/a", "/a"),
        ("file:/a", "/a"),
        ("FILE:///a", "/a"),
        ("/odd:name/x", "/odd:name/x"),
        ("s3://bucket/some/table", "s3://bucket/some/table"),
        ("S3://bucket/some/table/", "s3://bucket/some/table"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
    ],
)
def test_addresses_have_one_spelling(uri: str, normal: str) -> None:
    assert normalise_uri(uri) == normal
    assert normalise_uri(normal) == normal


def test_local_addresses_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")

    assert normalise_uri("table") == str(tmp_path / "table")
    assert normalise_uri("~/table") == "/home/someone/table"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "  ",
        "a\0b",
        "~no-such-user-here/a",
        "file://",
        "file://host/a",
        "s3://",
        "s3:///table",
        "s3:/bucket/table",
        "s3://key:secret@bucket/table",
        "s3://bucket//table",
        "s3://bucket/a/../b",
        "s3://bucket/a%20b",
        "s3://bucket/a?b",
        "s3://bucket/a#b",
    ],
)
def test_nonsense_addresses_are_refused(uri: str) -> None:
    with pytest.raises(errors.Usage) as refused:
        normalise_uri(uri)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["gcs", "azure", "memory", "http", "s3a", "s3+ddb"])
def test_other_schemes_are_unsupported(scheme: str) -> None:
    with pytest.raises(errors.Unsupported) as refused:
        open_objects(f"{scheme}://key:secret@host/x", {}, SystemClock())
    assert f"{scheme}://" in str(refused.value)
    assert "s3://" in str(refused.value)
    assert "secret" not in str(refused.value)


# --- the fakes ----------------------------------------------------------------------------------


def test_faults_strike_at_the_nth_match_before_or_after_the_effect() -> None:
    inner = MemoryObjects()
    seen: list[bool] = []
    objects = FaultyObjects(
        inner,
        Fault(operation="put*", path="m/*", nth=2, error=errors.StoreUnavailable("lost before")),
        Fault(operation="put", path="n/*", when="after", error=errors.StoreUnavailable("after")),
        Fault(operation="get", nth=None, hook=lambda: seen.append(inner.exists("m/1"))),
        Fault(operation="delete", path="n/*", error=errors.StoreUnavailable("no delete")),
    )

    objects.put("m/1", b"x")
    with pytest.raises(errors.StoreUnavailable, match="lost before"):
        objects.put_if_absent("m/2", b"x")
    with pytest.raises(errors.StoreUnavailable, match="after"):
        objects.put("n/1", b"x")
    objects.put("n/2", b"x")
    with pytest.raises(errors.StoreUnavailable, match="no delete"):
        objects.delete(["m/1", "n/1"])
    objects.get("m/1")
    objects.get("m/1")

    assert sorted(info.path for info in objects.list("")) == ["m/1", "n/1", "n/2"]
    assert seen == [True, True]
    assert objects.calls[:3] == [("put", "m/1"), ("put_if_absent", "m/2"), ("put", "n/1")]


def test_the_manual_clock_replays() -> None:
    one, other = ManualClock(seed=7), ManualClock(seed=7)
    one.random()  # chance and ids do not disturb each other

    assert [one.new_id() for _ in range(3)] == [other.new_id() for _ in range(3)]
    assert one.new_id()[14] == "4"
    started = one.now_nanos()
    one.sleep(1.5)
    one.advance(0.5)
    assert one.now_nanos() - started == 2 * 10**9
    assert one.monotonic_seconds() == 2.0
    assert one.slept_seconds == [1.5]
