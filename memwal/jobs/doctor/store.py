"""The scratch folder of `doctor`: below a table's `_maintenance/`, else directly at the address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import lance
import pyarrow as pa

from memwal.errors import MemWalError, Unsupported, Usage
from memwal.format import layout
from memwal.jobs.doctor.plan import is_denied
from memwal.ports import Clock, Objects
from memwal.store.objects.base import WAITS, StoreLimits
from memwal.store.objects.local import check_way
from memwal.store.objects.opening import is_in_bucket, open_objects, prove_put_if_absent
from memwal.store.tables.lance_calls import tidy_text, translated

IN_TABLE = f"{layout.STAGING}/doctor"
BESIDE = "_memwal_doctor"
# No run of doctor takes this long, by the store's own clock.
_LEFT_SECONDS_MIN = 3600


class ScratchFolder:
    """The scratch folder of one run. Raises what opening the store raises."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
    ) -> None:
        self._uri = uri
        self._options = dict(storage_options) or None
        self._clock = clock
        self._outer = open_objects(uri, storage_options, clock, limits)
        self._place = IN_TABLE if self._is_table() else BESIDE
        self._run = f"{self._place}/{clock.new_id()}"
        self._local = not is_in_bucket(uri)
        if self._local:
            if Path(uri).is_file():
                raise Usage(f"{uri} is a file: expected a folder, or one that is yet to be made")
            check_way(uri, self._run)  # nothing is put, or deleted, through a link
            way = [Path(uri, self._run), *Path(uri, self._run).parents]
            # The folder of all runs is removed with the last of them, but not within a table, where
            # other memwal runs may be about to use it.
            own = Path(uri, BESIDE)
            self._made = [folder for folder in way if folder == own or not folder.is_dir()]
        self._objects = open_objects(f"{uri}/{self._run}", storage_options, clock, limits)

    @property
    def address(self) -> str:
        """The folder's URI."""
        return self._objects.uri

    @property
    def objects(self) -> Objects:
        """The folder as an object store."""
        return self._objects

    def prove_put_if_absent(self) -> None:
        """Prove put-if-absent, as is done before a table's first write."""
        prove_put_if_absent(self._objects, self._clock)

    def use_lance(self) -> None:
        """Make a tiny table with Lance, append to it, and read it. Raises Unsupported."""
        uri, rows = f"{self.address}/table.lance", pa.table({"id": [1, 2, 3]})

        def explain(error: BaseException) -> MemWalError:
            return Unsupported("MW-D02", f"Lance can't work here: {tidy_text(error)}")

        with translated(explain, (Exception,)), WAITS.watch(uri, "Lance makes a table"):
            for mode in ("create", "append"):
                lance.write_dataset(rows, uri, mode=mode, storage_options=self._options)
            found = lance.dataset(uri, storage_options=self._options).to_table()
        if found["id"].to_pylist() != [1, 2, 3, 1, 2, 3]:
            raise Unsupported(
                "MW-D03", f"Lance reads other rows than it wrote: {found['id'].to_pylist()}"
            )

    def remove(self, paths: Iterable[str]) -> int:
        """Delete the folder, with everything put at `paths`; returns how many objects are left."""
        left = dict.fromkeys(paths, "")
        with suppress(MemWalError):
            # Known names first, as a listing may lag or be refused.
            left = dict(self._objects.delete(left).failed)
            more = [info.path for info in self._objects.list("") if info.path not in left]
            if more:
                left |= dict(self._objects.delete(more).failed)
        if self._local:
            _remove_folders(Path(self.address), self._made)
        return len(left)

    def remove_leftovers(self) -> None:
        """Delete what earlier, killed runs left; what can't be deleted stays."""
        found = list(self._outer.list(self._place))
        own = [i.modified_at_nanos for i in found if i.path.startswith(f"{self._run}/")]
        if not own:
            return
        old = max(own) - _LEFT_SECONDS_MIN * 1_000_000_000
        left = [info.path for info in found if info.modified_at_nanos < old]
        if left:
            self._outer.delete(left)
        if self._local:
            runs = {path[len(self._place) + 1 :].partition("/")[0] for path in left}
            for run in runs:
                _remove_folders(Path(self._uri, self._place, run), ())

    def _is_table(self) -> bool:
        """Whether the address is a table; True if listing is refused, as that does no harm."""
        try:
            return next(iter(self._outer.list(layout.VERSIONS)), None) is not None
        except MemWalError as error:
            if is_denied(error):
                return True
            raise


def _remove_folders(top: Path, made: Sequence[Path]) -> None:
    """Remove the folders in `top`, `top` itself and those `made` above it, if they are empty."""
    below = sorted((p for p in top.rglob("*") if p.is_dir() and not p.is_symlink()), reverse=True)
    for folder in (*below, top, *made):
        with suppress(OSError):
            folder.rmdir()
