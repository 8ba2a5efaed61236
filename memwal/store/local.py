"""Objects as local files. A reader sees a file whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from memwal import errors
from memwal.format import layout
from memwal.ports import (
    OBJECT_BYTES_MAX,
    DeleteResult,
    ObjectInfo,
    RequestCounts,
    check_folder,
    check_object_path,
    check_object_size,
)

# Staging lives outside `_mem_wal/` (invariant 9) but below the root, so that it is on the same
# file system and can be linked or renamed into place. A killed run may leave a file here.
_STAGING = layout.STAGING

# What lies in these folders is the table's own, or it is Corruption.
_UNLINKED = (f"{layout.MEM_WAL}/", f"{layout.MAINTENANCE}/")

# Only folders at or below a flushed generation are removed when they become empty. A generation's
# folder name holds a random part and belongs to one flush, so once something in it was deleted
# nobody writes there again. `_mem_wal/<shard>`, its `manifest/` and `wal/`, and the folders of the
# base table are all places where a live writer may be about to create a file: removing them
# between its mkdir and its open would make that write fail.
_GENERATION_FOLDER = re.compile(r"^(_mem_wal/[^/]+/[0-9a-f]{8}_gen_[0-9]+)/")

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOSYS}


class LocalObjects:
    """The Objects port on a folder.

    A folder counts only while there is a file somewhere below it, as on S3. Links to folders are
    not followed below the root, and no link at all where `_mem_wal/` or `_maintenance/` is read or
    written: what they hold is the table's own, or it is Corruption. Nothing is retried.
    """

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._counts = RequestCounts()
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"LocalObjects({str(self._root)!r})"

    @property
    def uri(self) -> str:
        """The root's absolute path."""
        return str(self._root)

    @property
    def store(self) -> str:
        """The file system, by its device; the root itself while there is no such folder."""
        try:
            return f"file system {self._root.stat().st_dev}"
        except OSError:
            return self.uri

    @property
    def counts(self) -> RequestCounts:
        """Requests so far. A listing, a read, a write or a removed file is one each."""
        return self._counts

    @property
    def page_objects(self) -> int:
        """0: each folder is read by itself."""
        return 0

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every file below the folder `prefix`; files that vanish on the way are left out."""
        folder = check_folder(prefix)
        self._count("list")
        return self._walk(folder)

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below `prefix` that hold a file at any depth, sorted."""
        folder = check_folder(prefix)
        self._count("list")
        below = f"{folder}/" if folder else ""
        names = [entry.name for entry in self._scan(folder) if _is_folder(entry)]
        return sorted(name for name in names if self._holds_a_file(below + name))

    def _holds_a_file(self, folder: str) -> bool:
        """True where that can't be told: one closed folder must not hide the ones beside it."""
        try:
            return any(self._walk(folder))
        except errors.StoreUnavailable:
            return True

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """The whole file. Raises Missing; Corruption when it is larger."""
        file = self._file(path)
        with self._reading(path), os.fdopen(self._opened(path), "rb") as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            check_object_size(str(file), size_bytes, size_bytes_max)
            return self._received(stream.read(size_bytes))

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises Missing; Corruption when the file is shorter."""
        if not 0 <= start <= end:
            raise ValueError(f"not a range: [{start}, {end})")
        file = self._file(path)
        with self._reading(path), os.fdopen(self._opened(path), "rb") as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            if size_bytes < end:
                raise errors.Corruption(
                    f"{file} has {size_bytes} bytes; bytes [{start}, {end}) were expected"
                )
            stream.seek(start)
            return self._received(stream.read(end - start))

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """At most the last `size_bytes_max` bytes, and the file's size. Raises Missing."""
        if size_bytes_max < 1:
            raise ValueError(f"not a tail length: {size_bytes_max}")
        self._file(path)
        # Without a stream, which costs more: a read of many generations begins with as many tails.
        with self._reading(path):
            handle = self._opened(path)
            try:
                size_bytes = os.fstat(handle).st_size
                start = max(0, size_bytes - size_bytes_max)
                return self._received(_read_at(handle, start, size_bytes - start)), size_bytes
            finally:
                os.close(handle)

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        file = self._file(path)
        with self._reading(path):
            return file.is_file()

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the file whole, or raise AlreadyExists.

        The finished file is hard-linked to its name: link(2) fails when the name is taken, where
        rename(2) would replace it.
        """
        target = self._target(path)
        with self._writing(path), self._staged(data) as staged:
            _make_folders(target.parent)
            try:
                target.hardlink_to(staged)
            except FileExistsError:
                raise errors.AlreadyExists(f"{target} exists") from None
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                raise errors.Unsupported(
                    f"the file system of {self._root} cannot hard-link ({error.strerror}), so a "
                    f"create-if-absent cannot be made atomic; keep the table on another file system"
                ) from error
            _sync_folder(target.parent)
        self._sent(data)

    def put(self, path: str, data: bytes) -> None:
        """Write the file, replacing any; a reader sees the old or the new whole."""
        target = self._target(path)
        with self._writing(path), self._staged(data) as staged:
            _make_folders(target.parent)
            staged.replace(target)
            _sync_folder(target.parent)
        self._sent(data)

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """Delete the files, then what became empty of the generation folders they were in."""
        wanted = [check_object_path(path) for path in dict.fromkeys(paths)]
        failed: list[tuple[str, str]] = []
        for path in wanted:
            self._count("delete")
            try:
                self._unlink(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue  # gone; or a parent is a file or a link, or this is a folder: no object
            except OSError as error:
                failed.append((path, _reason(error)))
        generations = {m[1] for m in map(_GENERATION_FOLDER.match, wanted) if m is not None}
        for folder in generations:
            if (self._root / folder).resolve() == self._root.resolve() / folder:
                _remove_empty_folders(self._root / folder)
        return DeleteResult(deleted=len(wanted) - len(failed), failed=tuple(failed))

    def _unlink(self, path: str) -> None:
        """Remove the file itself, going through no link: a folder that was listed may be one now.

        So a delete stays below the root (invariant 10), whoever changes folders meanwhile.
        """
        with self._folder_of(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    @contextmanager
    def _folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        """A handle of the file's folder, reached through no link, and the file's own name."""
        *folders, name = path.split("/")
        handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                inner = os.open(folder, flags, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle, name
        finally:
            os.close(handle)

    def _opened(self, path: str) -> int:
        """A handle of the file. Raises Corruption for a link to one of the table's own.

        There, whoever may write below the table could link to what only we may read. No link is
        gone through at any time, so nothing is won by putting one in place while we look.
        """
        if not path.startswith(_UNLINKED):
            return os.open(self._root / path, os.O_RDONLY)
        try:
            with self._folder_of(path) as (folder, name):
                return os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:  # ELOOP or ENOTDIR for a link, by the system
            check_way(str(self._root), path)
            raise

    def _scan(self, folder: str) -> Sequence[os.DirEntry[str]]:
        try:
            with self._reading(folder), os.scandir(self._root / folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except errors.Missing:
            return []

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        below = f"{folder}/" if folder else ""
        for entry in self._scan(folder):
            path = below + entry.name
            if _is_folder(entry):
                yield from self._walk(path)
                continue
            try:
                with self._reading(path):
                    info = entry.stat()
            except errors.Missing:
                continue
            if entry.is_file():
                yield ObjectInfo(
                    path=path, size_bytes=info.st_size, modified_at_nanos=info.st_mtime_ns
                )

    def _file(self, path: str) -> Path:
        check_object_path(path)
        self._count("get")
        return self._root / path

    def _target(self, path: str) -> Path:
        check_object_path(path)
        self._count("put")
        for written in (path, _STAGING):
            if written.startswith(_UNLINKED):
                check_way(str(self._root), written)
        return self._root / path

    @contextmanager
    def _staged(self, data: bytes) -> Iterator[Path]:
        """A finished, synced file that is gone again afterwards, under whatever name it had."""
        staged = self._root / _STAGING / f"{os.getpid()}-{secrets.token_hex(8)}"
        _make_folders(staged.parent)
        try:
            with staged.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            yield staged
        finally:
            with suppress(OSError):
                staged.unlink(missing_ok=True)

    def _received(self, data: bytes) -> bytes:
        with self._lock:
            self._counts.bytes_read += len(data)
        return data

    def _sent(self, data: bytes) -> None:
        with self._lock:
            self._counts.bytes_written += len(data)

    def _count(self, request: str) -> None:
        with self._lock:
            setattr(self._counts, request, getattr(self._counts, request) + 1)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise errors.Missing(f"{self._root / path} does not exist") from error
        except OSError as error:
            raise self._unavailable(path, error) from error

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unavailable(path, error) from error

    def _unavailable(self, path: str, error: OSError) -> errors.StoreUnavailable:
        return errors.StoreUnavailable(f"{self._root / path}: {_reason(error)}")


def check_way(root: str, path: str) -> None:
    """Raise Corruption for a symbolic link among the folders from `root` to `path`, or at its end.

    `root` itself, and what leads there, may be one.
    """
    way = root
    for name in path.split("/"):
        way = f"{way}/{name}"
        if os.path.islink(way):  # noqa: PTH114
            raise _linked(way)


def check_unlinked(root: str, folder: str) -> None:
    """Raise Corruption for a symbolic link on the way from `root` to `folder`, or anywhere in it.

    For files that Lance opens by their names, following links. Who puts a link there between this
    look and Lance's is not noticed: that takes leave to write below the table on this host, and
    the right instant. Raises StoreUnavailable for a folder that can't be read; one that is not
    there holds no link.
    """
    check_way(root, folder)
    link = find_link(f"{root}/{folder}")
    if link is not None:
        raise _linked(link)


def find_link(folder: str) -> str | None:
    """A symbolic link anywhere in a folder, which itself may be one; None without any.

    Raises StoreUnavailable for a folder that can't be read.
    """
    try:
        return next(_links(folder), None)
    except OSError as error:
        raise errors.StoreUnavailable(f"{folder}: {_reason(error)}") from None


def _links(folder: str) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield entry.path
            elif _is_folder(entry):
                yield from _links(entry.path)


def _linked(path: str) -> errors.Corruption:
    return errors.Corruption(
        f"{path} is a symbolic link: what a MemWAL holds, and what memwal keeps, has to lie in the "
        "table's own folder"
    )


def _read_at(handle: int, start: int, length: int) -> bytes:
    """So many bytes from there, or what there is; one read may give less than was asked for."""
    data = os.pread(handle, length, start)
    while len(data) < length and (more := os.pread(handle, length - len(data), start + len(data))):
        data += more
    return data


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _make_folders(folder: Path) -> None:
    """mkdir -p, synced: a file is durable only if the names of its folders are."""
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_empty_folders(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):  # not empty, or gone already
            Path(folder).rmdir()
