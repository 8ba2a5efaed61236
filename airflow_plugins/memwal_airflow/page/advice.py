"""What to do about a problem, taken from the documentation pages that come with memwal."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

# Maps what a message without a code says, after the state of its table, to the beginning of the row
# in OPERATING.md that says what to do; the first match counts.
ROWS = (
    (r"^unreachable: |no answer within", "page: unreachable"),
    (r"the disk is full", "No space left on device"),
    (r"access refused|Permission denied", "access refused"),
    (r"clock skew: the lease of", "clock skew"),
    (r"the lease is held by", "exit 4, the lease is held by"),
    (r"the lease could not be given back", "the lease could not be given back"),
    (r"was fenced: a writer|another writer claimed", "our writer … was fenced"),
    (r"waits in two shards", "a warning that a key waits in two shards"),
    (r"can't be written; the first:", "exit 2, ingest: a value"),
    (r"looks abandoned", "status: shard"),
    (r"the worker process died in every", "the worker process died"),
    (r"was ended by", "the worker process N was ended"),
    (
        r"waiting for a merge for more than|the freshness target of",
        "page: a generation has been waiting",
    ),
    (r"min after the last merge", "page: an index is generations behind"),
)
_CODE = re.compile(r"\((MW-[A-Z]\d\d)\)")
_ENTRY = re.compile(r"^### (MW-\S+)\n.*?^- \*\*Do\*\*: (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_SHELL_SAFE = re.compile(r"[\w.][\w.-]*")


def find_advice(text: str, exit_code: int | None, table: str) -> str | None:
    """Return what to do about a message, by its code, its text, or the run's exit code.

    None if nothing is known. A message that quotes another one ends with its own code.
    """
    codes = _CODE.findall(text)
    begins = next((begins for pattern, begins in ROWS if re.search(pattern, text)), None)
    if codes:
        found = read_entries().get(codes[-1])
    elif begins is None:
        found = dict(read_rows("GUARANTEES.md", "When something fails")).get(str(exit_code or ""))
    else:
        rows = read_rows("OPERATING.md", "When something is in the way")
        found = next((do for says, do in rows if says.startswith(begins)), None)
    return name_table(found, table) if found else None


def name_table(advice: str, table: str) -> str:
    """Put the table's name into the commands, if a shell takes the name unquoted."""
    return advice.replace("TABLE", table) if _SHELL_SAFE.fullmatch(table) else advice


@cache
def read_entries() -> dict[str, str]:
    """Read what to do about each code from TROUBLE.md."""
    return {code: _strip(" ".join(do.split())) for code, do in _ENTRY.findall(_read("TROUBLE.md"))}


@cache
def read_rows(page: str, heading: str) -> tuple[tuple[str, str], ...]:
    """Read the first and last cells of the table below a heading; links become their texts."""
    section = _read(page).partition(f"\n## {heading}\n")[2]
    lines = section.partition("\n## ")[0].splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return tuple((_strip(row[0]), _strip(row[-1])) for row in cells[2:])


def _read(page: str) -> str:
    file = files("memwal").joinpath(page)
    return file.read_text("utf-8") if file.is_file() else ""


def _strip(cell: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell).strip()
