"""What to do about what is wrong: a row of memwal's own pages, which it brings along."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

# What a message says, behind the state of its table, and how the row of OPERATING.md begins that
# tells what to do; the first that fits counts.
ROWS = (
    (r"^unreachable: |no answer within", "page: unreachable"),
    (r"clock skew: the lease of", "clock skew"),
    (r"the lease is held by", "exit 4, the lease is held by"),
    (r"the lease could not be given back", "the lease could not be given back"),
    (r"neither merged nor listed", "exit 5 (`verify`: 8), generations are neither"),
    (r"MemWAL index was initialised after", "exit 5, the table's MemWAL index"),
    (r"nothing tells for which values|rows wait in shard", "exit 5, shards hold rows"),
    (r"one key, one shard|waits in two shards", "exit 8, one key, one shard"),
    (r"can't be written; the first:", "exit 2, ingest: a value"),
    (r"since its ingest began", "exit 5, a file has changed"),
    (r"staged rows are gone", "exit 5, staged rows are gone"),
    (r"does not keep put-if-absent", "exit 7, this store"),
    (r"a blob is the address", "exit 5, a blob is the address"),
    (r"no version is expired: \S+ is a symbolic link", "exit 5, no version is expired"),
    (r"leads to another table's files|is a symbolic link", "exit 8, its manifest leads"),
    (r"looks abandoned", "status: shard"),
    (r"the executor on ", "the executor on HOST"),
    (r"the worker process died in every", "the worker process died"),
    (r"was ended by", "the worker process N was ended"),
    (
        r"waiting for a merge for more than|the freshness target of",
        "page: a generation has been waiting",
    ),
    (r"min after the last merge", "page: an index is generations behind"),
    (r"can't be read|^broken: shard ", "exit 8, a manifest or generation can't be read"),
)
_SHELL_SAFE = re.compile(r"[\w.][\w.-]*")


def find_advice(text: str, exit_code: int | None, table: str) -> str | None:
    """What to do about a message, by what it says, else by the run's exit code; None: not known."""
    begins = next((begins for pattern, begins in ROWS if re.search(pattern, text)), None)
    if begins is None:
        found = dict(read_rows("GUARANTEES.md", "When something fails")).get(str(exit_code or ""))
    else:
        rows = read_rows("OPERATING.md", "When something is in the way")
        found = next((do for says, do in rows if says.startswith(begins)), None)
    return name_table(found, table) if found else None


def name_table(advice: str, table: str) -> str:
    """With the table's name in commands, where a shell takes it as it is."""
    return advice.replace("TABLE", table) if _SHELL_SAFE.fullmatch(table) else advice


@cache
def read_rows(page: str, heading: str) -> tuple[tuple[str, str], ...]:
    """The first and last cells of the table below a heading; links as their texts alone."""
    file = files("memwal").joinpath(page)
    section = file.read_text("utf-8").partition(f"\n## {heading}\n")[2] if file.is_file() else ""
    lines = section.partition("\n## ")[0].splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return tuple((_strip(row[0]), _strip(row[-1])) for row in cells[2:])


def _strip(cell: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).strip()
