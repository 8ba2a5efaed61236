"""A table of operands, and files of them to ingest: each row counts, not only a key's newest.

What is read has to be what the plain model (tests/support/policy_model.py) makes of all changes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner

from memwal.cli.app import app
from tests.support.builders import KINDS
from tests.support.policy_model import Row
from tests.support.policy_tables import OF, Entry, PolicyTable, Variant, make_policy_table

CHANGES = 300
KEYS = 24
FILES = 3


@dataclass(frozen=True, kw_only=True)
class Counters:
    """A table, where its configuration is, and the files to ingest."""

    table: PolicyTable
    config: str
    source: str
    chance: random.Random
    bad_rows: str
    bad_per_file: int
    """Rows without a key, which are to be set aside."""
    steps: count[int] = field(default_factory=count)
    parts: count[int] = field(default_factory=count)

    def run(self, *arguments: str) -> dict[str, Any]:
        """One command on the table, as a person types it."""
        words = [*arguments, "--config", self.config, "--json"]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def ingest(self) -> dict[str, Any]:
        [report] = self.run("ingest", "counters", *self.asked())["tables"]
        return report

    def asked(self) -> list[str]:
        words = [self.source, "--delete-column", "gone", "--rows-per-chunk", "20"]
        return [*words, "--bad-rows", self.bad_rows] if self.bad_per_file else words

    def words(self) -> list[str]:
        """What follows `memwal ingest` for a process of its own."""
        return ["counters", *self.asked(), "--config", self.config]

    def land(self) -> None:
        """More files, with changes to come."""
        entries = [change(self.table, self.chance, next(self.steps)) for _ in range(CHANGES)]
        each = len(entries) // FILES
        for first in range(0, len(entries), each):
            file = Path(self.source) / f"part-{next(self.parts):04d}.parquet"
            bad = sorted(self.chance.sample(range(each), self.bad_per_file))
            write_source(self.table, file, entries[first : first + each], bad)
        self.table.written[self.table.shards[0]].append(entries)

    def read_bad_rows(self) -> list[tuple[str, int]]:
        """The rows that were set aside: file and number."""
        lines = Path(self.bad_rows).read_text().splitlines()
        return [(row["source"], row["row"]) for row in map(json.loads, lines)]

    def merge(self) -> None:
        self.run("merge", "counters", "--engine", "local")

    def flush_what_is_left(self) -> None:
        """What `memwal rescue` does: another writer replays each shard's WAL and flushes it."""
        for shard in self.table.stores.views.table().shards:
            with self.table.dataset.mem_wal_writer(shard.shard_id):
                pass

    def read(self) -> dict[Any, Row]:
        """What `memwal read` prints, by key."""
        [report] = self.run("read", "counters")["tables"]
        rows = report["rows"]
        found = {tuple(row[name] for name in self.table.kind.names): row for row in rows}
        assert len(found) == len(rows)
        return found

    def truth(self) -> dict[Any, Row]:
        return self.table.by_key(self.table.truth())

    def rows_in_wal(self) -> int:
        stores = self.table.stores
        return sum(
            batch.num_rows
            for shard in stores.views.table().shards
            for position, _ in stores.wal.list_entries(shard.shard_id)
            for batch in stores.wal.rows(shard.shard_id, position).batches
        )


def change(table: PolicyTable, chance: random.Random, n: int) -> Entry:
    """Operands mostly; values and deletes, which nothing older may pass."""
    key = chance.randrange(KEYS)
    if chance.random() < 0.1:
        return key, None
    amount = chance.randrange(-50, 50)
    row = table.row(
        key,
        amount,
        x=float(amount),  # sums of these are exact
        log=[n],
        tags=chance.choice([None, ["a"], ["b", "a"], [f"t{n % 7}"]]),
        seen=chance.choice([None, n]),
        note=f"change {n}",
        op=chance.choice([True, True, True, True, False, None]),
    )
    return key, row


def write_source(
    table: PolicyTable, file: Path, entries: list[Entry], bad: Sequence[int] = ()
) -> None:
    """The changes in a file; a delete has its key and the word for it. `bad` are rows before which
    there is one without a key.
    """
    schema = table.dataset.schema
    names = table.kind.names
    columns = [field.remove_metadata() for field in schema]
    columns = [f.with_nullable(True) for f in columns]
    given = pa.schema([*columns, pa.field("gone", pa.bool_())])
    rows = []
    for place, (key, row) in enumerate(entries):
        rows += [{"note": "bad", "gone": False}] if place in bad else []
        keys = dict(zip(names, table.kind.key(key), strict=True))
        rows.append({**keys, **(row or {}), "gone": row is None})
    found = pa.Table.from_pylist(rows, schema=given)
    pq.write_table(found, file, row_group_size=32)


def make_counters(tmp_path: Path, seed: int = 7, bad_per_file: int = 0) -> Counters:
    """A base, a policy that its configuration asks for, and 300 changes to come."""
    variant = Variant(expiry=False)
    table = make_policy_table(
        tmp_path / "t",
        variant,
        rows=range(0, KEYS, 2),
        stored=False,
        bucket_column=KINDS[variant.key].names[0],
        num_buckets=3,
        # So that an ingest makes several generations of a shard.
        max_memtable_rows=30,
    )
    columns = "\n".join(
        f'{name} = "{operator}"'
        if cap is None
        else f'{name} = {{ operator = "{operator}", cap = {cap} }}'
        for name, (operator, cap) in OF.items()
    )
    config = tmp_path / "memwal.toml"
    config.write_text(
        f'[tables.counters]\nuri = "{table.uri}"\n'
        f'[tables.counters.policy]\nmarker = "op"\n'
        f"[tables.counters.policy.columns]\n{columns}\n"
    )
    (tmp_path / "source").mkdir()
    found = Counters(
        table=table,
        config=str(config),
        source=str(tmp_path / "source"),
        chance=random.Random(seed),
        bad_rows=str(tmp_path / "bad.jsonl"),
        bad_per_file=bad_per_file,
    )
    found.land()
    found.merge()  # nothing is pending: it stores the policy
    assert table.dataset.config()["memwal.policy"] == variant.policy.as_text()
    return found
