"""Real tables for tests that must not import lance: a process of .venv makes and writes them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from local_airflow.home import JOBS_BIN, ROOT

MAKER = "tests.airflow.table_maker"
# Nothing by the clock: tests start what they look at.
DEFAULTS = """\
[defaults]
engine = "local"
due_generations_min = 1

[airflow]
merge_schedule = ""
garbage_schedule = ""
index_catchup_schedule = ""
snapshot_schedule = ""
deferrable = true
compaction_schedule = ""
retries = 8
retry_delay_seconds = 3
"""


class TableMaker:
    """`with TableMaker() as maker: maker.ask("make", ...)`; see table_maker.py for what it does."""

    def __init__(self, module: str = MAKER) -> None:
        self._module = module

    def __enter__(self) -> TableMaker:
        self._process = subprocess.Popen(
            [JOBS_BIN / "python", "-m", self._module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def ask(self, do: str, **request: Any) -> Any:
        """Do one operation. Raises AssertionError with the maker's traceback."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the table maker ended"
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["ok"]


@dataclass(frozen=True, kw_only=True)
class TestTable:
    """A table that the configuration file names."""

    __test__ = False

    name: str
    uri: str
    shards: tuple[str, ...]
    maker: TableMaker
    numbers: count[int]

    def flush(self, puts: Sequence[int] = (), deletes: Sequence[int] = (), shard: int = 0) -> int:
        """One writer session: one generation, whose number is returned. Keys are numbers; each
        belongs to one shard, and the test has to keep to that.
        """
        done: int = self.maker.ask(
            "flush",
            uri=self.uri,
            shard=shard,
            puts=list(puts),
            deletes=list(deletes),
            n=next(self.numbers),
        )
        return done

    def fill(self, generations: int, shard: int = 0) -> None:
        """Flush that many generations: updates, a delete and a new key each."""
        for _ in range(generations):
            new = next(self.numbers)
            keys = range(shard, 40 * len(self.shards), len(self.shards))
            self.flush([*keys[:10], 10_000 + new], [keys[10]], shard)

    def land(self, file: Path, puts: Sequence[int]) -> dict[Any, int]:
        """Write a file of new rows of these keys; what `read` is to have of them then."""
        n = next(self.numbers)
        place = {"uri": self.uri, "file": str(file)}
        return dict(self.maker.ask("land", **place, puts=list(puts), n=n))

    def read(self, column: str = "n") -> dict[Any, Any]:
        """A column's values as readers see them, by the values of the key."""
        return dict(self.maker.ask("read", uri=self.uri, column=column))

    def progress(self) -> dict[str, int]:
        """Merge progress by shard id."""
        found: dict[str, int] = self.maker.ask("progress", uri=self.uri)
        return found

    def flushed(self) -> dict[str, int]:
        """The highest flushed generation by shard id."""
        found: dict[str, int] = self.maker.ask("flushed", uri=self.uri)
        return found

    def check(self, *, merged: bool = True) -> None:
        """Assert that readers see what was written; `merged`: in the base table alone too."""
        self.maker.ask("check", uri=self.uri, merged=merged)

    def break_shard(self, shard: int = 0) -> None:
        """Spoil the shard's manifests: jobs report corruption (exit code 8) from here on."""
        folder = Path(self.uri) / "_mem_wal" / self.shards[shard] / "manifest"
        manifests = list(folder.glob("*.binpb"))
        assert manifests, f"shard {shard} has no manifest yet; flush first"
        for file in manifests:
            file.write_bytes(b"\xff" * 40)


class Tables:
    """The tables of one configuration file, by name. The file is rewritten with each new table."""

    def __init__(self, maker: TableMaker, folder: Path, config_file: Path) -> None:
        self.maker = maker
        self.folder = folder
        self.config_file = config_file
        self.head = DEFAULTS
        self._numbers = count(100_000, 1000)
        self._tables: dict[str, TestTable] = {}
        self._sections: dict[str, str] = {}
        self._write()

    def __getitem__(self, name: str) -> TestTable:
        return self._tables[name]

    def make(
        self,
        name: str,
        *,
        rows: int = 100,
        shards: int = 1,
        generations: int = 0,
        indexed: bool = True,
        kind: str = "int64",
        stable: bool = False,
        settings: Mapping[str, str | int | float | bool] | None = None,
    ) -> TestTable:
        """Make a table, with `generations` pending in every shard, and name it in the file.

        With `stable` row ids its changes can be followed.
        """
        uri = str(self.folder / name)
        how = {"rows": rows, "shards": shards, "indexed": indexed, "kind": kind, "stable": stable}
        ids = self.maker.ask("make", uri=uri, **how)
        table = TestTable(
            name=name, uri=uri, shards=tuple(ids), maker=self.maker, numbers=self._numbers
        )
        for shard in range(shards):
            table.fill(generations, shard)
        self._tables[name] = table
        self.name(name, **(settings or {}))
        return table

    def name(self, *names: str, **settings: str | int | float | bool) -> None:
        """Name tables in the file, whether they are there or not."""
        for name in names:
            # JSON's texts, numbers and truth values are TOML's too.
            lines = {"uri": str(self.folder / name), **settings}
            self._sections[name] = "\n".join(f"{k} = {json.dumps(v)}" for k, v in lines.items())
        self._write()

    def set_head(self, text: str) -> None:
        """What stands before the tables: `[defaults]`, `[airflow]`."""
        self.head = text
        self._write()

    def _write(self) -> None:
        parts = [
            self.head,
            *(f"[tables.{json.dumps(n)}]\n{text}\n" for n, text in self._sections.items()),
        ]
        # DAGs and page read the file at any time, so it has to be whole at any time.
        new = self.config_file.with_suffix(".new")
        new.write_text("\n".join(parts))
        new.replace(self.config_file)
