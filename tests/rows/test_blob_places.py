"""Where a blob's address leads, and that nothing ambiguous leads anywhere."""

from __future__ import annotations

import pytest

from memwal.store.tables.blobs import is_below

FOLDERS = ("/data/t", "file:///data/media%20files/", "s3://bucket/media", "s3://whole")


@pytest.mark.parametrize(
    "address",
    [
        *("file:///data/t/a", "FILE://localhost/data/t/a/b", "/data/t/a b"),
        *("file:///data/media%20files/%C3%A9", "file:///data/media files/a"),
        *("s3://bucket/media/a", "S3://bucket/media/a%2Bb", "s3://whole/a"),
    ],
)
def test_what_lies_below_a_folder(address: str) -> None:
    assert is_below(address, FOLDERS)


@pytest.mark.parametrize(
    "address",
    [
        # elsewhere, and the folders themselves
        *("file:///etc/passwd", "file:///data/t", "file:///data/t/", "file:///data/t-evil/a"),
        *("file:///data/T/a", "file://other-host/data/t/a", "s3://bucket-evil/media/a"),
        *("s3://Bucket/media/a", "s3://bucket/media-evil/a", "s3://bucket/a", "s3://data/t/a"),
        *("gs://bucket/media/a", "file+uring:///data/t/a", "file-object-store:///data/t/a"),
        # out of the folder again
        *("file:///data/t/../secret", "file:///data/t/%2e%2e/secret", "/data/t/../secret"),
        *("file:///data/t/.%2E/secret", "file:///data/t/..%2fsecret", "s3://bucket/media/../a"),
        "file:///data/t/%252e%252e/secret",
        # read as one thing by some, as another by others
        *("file:///data/t//a", "file:///data/t/./a", "file:///data/t/a\\..\\b"),
        *("file:///data/t/a%5Cb", "file:///data/t/\t../a", "file:///data/t/a%00b"),
        *("file:///data/t/a%ff", "file:///data/t/a?b", "file:///data/t/a#b", " file:///data/t/a"),
        *("file:/data/t/a", "file:data/t/a", "data/t/a", "a", "", "s3:///bucket/media/a"),
        *("s3://user:word@bucket/media/a", "s3://bucket:80/media/a"),
        "s3://bucket\\@evil/media/a",
    ],
)
def test_what_does_not(address: str) -> None:
    assert not is_below(address, FOLDERS)


@pytest.mark.parametrize("folder", ["", "t", "../t", "/data/../t", "s3://", "file:///a%25b"])
def test_a_folder_that_can_not_be_placed_holds_nothing(folder: str) -> None:
    assert not is_below(f"{folder}/a", [folder])
    assert not is_below("/data/t/a", [folder])
