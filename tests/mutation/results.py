"""What came of the mutations, kept in a file: the last result of each, and a table by group."""

from __future__ import annotations

import json
import subprocess
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
        "by": verdict.by.partition("\n")[0][:120],
        "seconds": round(verdict.seconds, 1),
        "commit": _commit(root),
    }
    known = dict(sorted(known.items()))
    file.write_text(json.dumps(known, indent=1) + "\n")
    file.with_suffix(".md").write_text(table(known))


def table(known: dict[str, dict[str, Any]]) -> str:
    """Markdown: how many of each group were noticed, in how many seconds, at which commits."""
    lines = ["| group | mutations | noticed | seconds | commit |", "|---|---|---|---|---|"]
    for group, members in groupby(sorted(known), key=group_of):
        rows = [known[name] for name in members]
        noticed = sum(row["result"] == "noticed" for row in rows)
        seconds = sum(row["seconds"] for row in rows)
        commits = ", ".join(sorted({row["commit"] for row in rows}))
        lines.append(f"| {group} | {len(rows)} | {noticed} | {seconds:.0f} | {commits} |")
    noticed = sum(row["result"] == "noticed" for row in known.values())
    seconds = sum(row["seconds"] for row in known.values())
    lines.append(f"| all | {len(known)} | {noticed} | {seconds:.0f} | |")
    return "\n".join(lines) + "\n"


def group_of(name: str) -> str:
    """The words before the colon."""
    return name.partition(":")[0]


@cache
def _commit(root: Path) -> str:
    words = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
