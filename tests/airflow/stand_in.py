"""A program in memwal's place, for tests of what Airflow asks and of what it makes of answers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Without site-packages it starts in a fraction of the time: much may run beside it.
_PROGRAM = """#!{python} -IS
import json, os, pathlib, sys
folder, words = pathlib.Path({folder!r}), sys.argv[1:]
with open(folder / "words", "a") as file:
    print(json.dumps(words), file=file)
answers = json.loads((folder / "answers").read_text())
answer = answers[min(len((folder / "words").read_text().splitlines()), len(answers)) - 1]
if "program" in answer:
    os.execvp("sh", ["sh", "-c", answer["program"], *sys.argv])
print(answer["log"], end="", flush=True)
report, tables = answer["report"], answer["tables"]
if tables is not None:
    named = words[words.index("--") + 1:]
    report["tables"] += [tables[name] for name in named if name in tables]
if "--json" in words:
    print(json.dumps(report))
elif report is not None:
    pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
sys.exit(answer["code"])
"""


class StandIn:
    """The program in `folder`. By default every job of it has done something on no table."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.program = folder / "memwal"
        self.program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
        self.program.chmod(0o755)
        self.answer({})

    def answer(self, *answers: dict[str, Any]) -> None:
        """What it does from here on: one answer after the other, the last one again and again.

        An answer has a `report`, or None; `tables` by name, of which those that are asked for
        come into it; a `code`, a `log`; or a `program`, for a shell with the words in "$@".
        """
        known = {"report": {"outcome": "done", "tables": []}, "tables": None, "code": 0, "log": ""}
        new = self._folder / "answers.new"
        new.write_text(json.dumps([{**known, **answer} for answer in answers]))
        new.replace(self._folder / "answers")
        (self._folder / "words").unlink(missing_ok=True)

    @property
    def words(self) -> list[list[str]]:
        """What it was asked since it was told what to answer, run by run."""
        file = self._folder / "words"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def asked(self) -> list[tuple[str, ...]]:
        """The tables of each run."""
        return [tuple(words[words.index("--") + 1 :]) for words in self.words]


def real(code: str = "") -> str:
    """For an answer's `program`: the real command."""
    return f'{code}exec {os.environ["AIRFLOW__MEMWAL__COMMAND"]} "$@"'
