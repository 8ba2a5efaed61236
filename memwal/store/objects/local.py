"""Objects in a local folder, and its symbolic links.

A symbolic link where none may be is Corruption: whoever may write below the table could link to
what only we may read, or have us delete elsewhere.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from memwal import errors
from memwal.errors import Corruption, StoreUnavailable
from memwal.format import layout
from memwal.model import StoredFile
from memwal.ports import DeleteResult, check_folder, check_object_path
from memwal.store.objects.base import SizedObjects
from memwal.store.objects.full_disk import add_hint

# Staging lives outside `_mem_wal/` (invariant 9) but below the root, so that it is on the same
# file system and can be linked or renamed into place. A killed run may leave a file here.
_STAGING = layout.STAGING
# Nothing is reached through a link here: what lies in these folders is the table's own.
_UNLINKED = (f"{layout.MEM_WAL}/", f"{layout.MAINTENANCE}/")
# Only folders at or below a flushed generation are removed when they become empty. A generation's
# folder name holds a random part and belongs to one flush, so once something in it was deleted
# nobody writes there again. `_mem_wal/<shard>`, its `manifest/` and `wal/`, and the folders of the
# base table are all places where a live writer may be about to create a file: removing them
# between its mkdir and its open would make that write fail.
_GENERATION_FOLDER = re.compile(r"^(_mem_wal/[^/]+/[0-9a-f]{8}_gen_[0-9]+)/")
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOSYS}


def check_way(root: str, path: str) -> None:
    """Raise Corruption for a symbolic link among the folders from `root` to `path`, or at its end.

    `root` itself, and what leads there, may be one.
    """
    way = root
    for name in path.split("/"):
        way = f"{way}/{name}"
        if os.path.islink(way):  # noqa: PTH114
            raise _link_found(way)


def check_unlinked(root: str, folder: str) -> None:
    """Raise Corruption for a symbolic link on the way from `root` to `folder`, or anywhere in it.

    For files that Lance opens by name, following links. A link that is put there between this look
    and Lance's goes unnoticed: that takes write access below the table on this host, and the right
    instant. Raises StoreUnavailable for a folder that can't be read; a missing one has no links.
    """
    check_way(root, folder)
    link = find_link(f"{root}/{folder}")
    if link is not None:
        raise _link_found(link)


def find_link(folder: str) -> str | None:
    """A symbolic link anywhere in a folder, which itself may be one; None without any.

    Raises StoreUnavailable for a folder that can't be read.
    """
    try:
        return next(_walk_links(folder), None)
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror or type(error).__name__}") from None


def _walk_links(folder: str) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield entry.path
            elif entry.is_dir(follow_symlinks=False):
                yield from _walk_links(entry.path)


def _link_found(path: str) -> Corruption:
    return Corruption(
        "MW-O12",
        f"{path} is a symbolic link: what a MemWAL holds, and what memwal keeps, has to lie in the "
        "table's own folder",
    )


class LocalObjects(SizedObjects):
    """The Objects port on a folder.

    A folder counts only while there is a file somewhere below it, as on S3. Links to folders are
    not followed below the root, and no link at all where `_mem_wal/` or `_maintenance/` is read or
    written: what they hold is the table's own, or it is Corruption. Nothing is retried.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._root = Path(root)
        self._below = f"{self._root}/"  # joined as text: a look at a table does it for each folder

    @property
    def store(self) -> str:
        """The file system, by its device; the root itself while there is no such folder."""
        try:
            return f"file system {self._root.stat().st_dev}"
        except OSError:
            return self.uri

    @property
    def page_objects(self) -> int:
        """0: each folder is read by itself."""
        return 0

    def list(self, prefix: str) -> Iterator[StoredFile]:
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
        """True where that can't be told: one closed folder must not hide the ones beside it.

        No more is read than it takes to find one.
        """
        try:
            with self._reading(folder), os.scandir(self._below + folder) as entries:
                return any(
                    self._holds_a_file(f"{folder}/{e.name}") if _is_folder(e) else e.is_file()
                    for e in entries
                )
        except errors.Missing:
            return False
        except errors.StoreUnavailable:
            return True

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        check_object_path(path)
        self._count("get")
        with self._reading(path):
            return (self._root / path).is_file()

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the file whole, or raise AlreadyExists.

        The finished file is hard-linked to its name: link(2) fails when the name is taken, where
        rename(2) would replace it.
        """
        self.put_parts(path, [data])

    def put_parts(self, path: str, parts: Iterable[bytes]) -> None:
        """Create the file whole out of its parts, or raise AlreadyExists."""
        target = self._check_target(path)
        with self._writing(path), self._stage(parts) as staged:
            _make_folders(target.parent)
            try:
                target.hardlink_to(staged)
            except FileExistsError:
                raise errors.AlreadyExists(f"{target} exists") from None
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                raise errors.Unsupported(
                    "MW-O06",
                    f"the file system of {self._root} cannot hard-link ({error.strerror}), so "
                    "a create-if-absent cannot be made atomic; keep the table on another file "
                    "system",
                ) from error
            _sync_folder(target.parent)
            self._count("bytes_written", staged.stat().st_size)

    def put(self, path: str, data: bytes) -> None:
        """Write the file, replacing any; a reader sees the old or the new whole."""
        target = self._check_target(path)
        with self._writing(path), self._stage([data]) as staged:
            _make_folders(target.parent)
            staged.replace(target)
            _sync_folder(target.parent)
        self._count("bytes_written", len(data))

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """Delete the files, then those of their generation folders that are empty now."""
        wanted = [check_object_path(path) for path in dict.fromkeys(paths)]
        failed: list[tuple[str, str]] = []
        for path in wanted:
            self._count("delete")
            try:
                self._unlink(path)
            except _ABSENT:
                continue  # gone; or a parent is a file or a link, or this is a folder: no object
            except OSError as error:
                failed.append((path, _describe(error)))
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
        handle = os.open(self._below, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                inner = os.open(folder, flags, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle, name
        finally:
            os.close(handle)

    def _open_file(self, path: str) -> int:
        """A handle of the file. Raises Corruption for a link to one of the table's own.

        There, whoever may write below the table could link to what only we may read. No link is
        followed at any time, so putting one in place while we look gains nothing.
        """
        if not path.startswith(_UNLINKED):
            return os.open(self._below + path, os.O_RDONLY)
        try:
            with self._folder_of(path) as (folder, name):
                return os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:  # ELOOP or ENOTDIR for a link, by the system; never ENOENT
            if error.errno != errno.ENOENT:
                check_way(str(self._root), path)
            raise

    def _scan(self, folder: str) -> Sequence[os.DirEntry[str]]:
        try:
            with self._reading(folder), os.scandir(self._below + folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except errors.Missing:
            return []

    def _walk(self, folder: str) -> Iterator[StoredFile]:
        below = f"{folder}/" if folder else ""
        for entry in self._scan(folder):
            path = below + entry.name
            if _is_folder(entry):
                yield from self._walk(path)
                continue
            try:
                info = entry.stat()
            except _ABSENT:
                continue
            except OSError as error:
                raise self._unavailable(path, error) from error
            if entry.is_file():
                yield StoredFile(
                    path=path, size_bytes=info.st_size, modified_at_nanos=info.st_mtime_ns
                )

    def _read(self, path: str, choose: Callable[[int], tuple[int, int]]) -> tuple[bytes, int]:
        check_object_path(path)
        self._count("get")
        # Without a stream, which costs more: a read of many generations begins with as many tails.
        with self._reading(path):
            handle = self._open_file(path)
            try:
                found = os.fstat(handle)
                if stat.S_ISDIR(found.st_mode):
                    raise IsADirectoryError
                start, end = choose(found.st_size)
                data = _read_at(handle, start, end - start)
            finally:
                os.close(handle)
        self._count("bytes_read", len(data))
        return data, found.st_size

    def _check_target(self, path: str) -> Path:
        check_object_path(path)
        self._count("put")
        for written in (path, _STAGING):
            if written.startswith(_UNLINKED):
                check_way(str(self._root), written)
        return self._root / path

    @contextmanager
    def _stage(self, parts: Iterable[bytes]) -> Iterator[Path]:
        """A finished, synced file that is gone again afterwards, under whatever name it had."""
        staged = self._root / _STAGING / f"{os.getpid()}-{secrets.token_hex(8)}"
        _make_folders(staged.parent)
        try:
            with staged.open("xb") as stream:
                for part in parts:
                    stream.write(part)
                stream.flush()
                os.fsync(stream.fileno())
            yield staged
        finally:
            with suppress(OSError):
                staged.unlink(missing_ok=True)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except _ABSENT as error:
            raise errors.Missing(f"{self._below}{path} does not exist") from error
        except OSError as error:
            raise self._unavailable(path, error) from error

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unavailable(path, error) from error

    def _unavailable(self, path: str, error: OSError) -> errors.Unreachable:
        what = _describe(error)
        if error.errno in _REFUSED:  # of a part, perhaps: other shards go on
            what = f"access refused to user {_name_user()}: {what}"
        return errors.Unreachable(add_hint(f"{self._below}{path}: {what}", error))


def _read_at(handle: int, start: int, length: int) -> bytes:
    """So many bytes from there, or what there is; one read may give less than was asked for."""
    data = os.pread(handle, length, start)
    while len(data) < length and (more := os.pread(handle, length - len(data), start + len(data))):
        data += more
    return data


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _name_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _describe(error: OSError) -> str:
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
