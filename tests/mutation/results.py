"""What came of the mutations, kept in a file: the last result of each, and who noticed it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.mutation.groups import Mutation


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a mutation was noticed, and by what. `error` when nothing can be said."""

    noticed: bool
    by: str
    seconds: float
    error: bool = False

    @property
    def word(self) -> str:
        """For the table."""
        if self.error:
            return "ERROR"
        return "noticed" if self.noticed else "SURVIVED"


def names(file: Path) -> frozenset[str]:
    """The mutations whose results are in a file."""
    return frozenset(json.loads(file.read_text()) if file.exists() else ())


def keep(file: Path, root: Path, mutation: Mutation, verdict: Verdict) -> None:
    """Put one result in the place of the last one of its name; the table beside it is renewed."""
    known: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    known[mutation.name] = {
        "result": verdict.word,
        "level": "nightly" if mutation.nightly else "test",
        "by": verdict.by.partition("\n")[0][:120],
        "seconds": round(verdict.seconds, 1),
        "commit": _commit(root),
    }
    known = dict(sorted(known.items()))
    file.write_text(json.dumps(known, indent=1) + "\n")
    file.with_suffix(".md").write_text(table(known))


def table(known: dict[str, dict[str, Any]]) -> str:
    """Markdown: who noticed how many of each group; the names that `make test` does not notice."""
    lines = [
        "| group | mutations | make test | nightly | nobody | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for group, members in groupby(sorted(known), key=group_of):
        lines.append(_line(group, {name: known[name] for name in members}))
    lines.append(_line("all", known))
    for level in ("nightly", "nobody"):
        names = sorted(name for name, row in known.items() if _noticed_by(row) == level)
        lines += ["", f"Noticed by {level}: {len(names)}", "", *(f"- {name}" for name in names)]
    return "\n".join(lines) + "\n"


def _line(group: str, rows: dict[str, dict[str, Any]]) -> str:
    by = Counter(map(_noticed_by, rows.values()))
    seconds = sum(row["seconds"] for row in rows.values())
    counts = " | ".join(str(by[level]) for level in ("test", "nightly", "nobody"))
    return f"| {group} | {len(rows)} | {counts} | {seconds:.0f} |"


def _noticed_by(row: dict[str, Any]) -> str:
    return str(row.get("level", "test")) if row["result"] == "noticed" else "nobody"


def group_of(name: str) -> str:
    """The words before the colon."""
    return name.partition(":")[0]


@cache
def _commit(root: Path) -> str:
    words = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
