"""A program in memwal's place, for tests of what Airflow asks and of what it makes of answers."""

from __future__ import annotations

import json
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
if answer["program"]:
    os.execvp("sh", ["sh", "-c", answer["program"], *sys.argv])
os.system(answer["first"])
print(answer["log"], end="", flush=True)
report, tables = answer["report"], answer["tables"]
named = words[words.index("--") + 1:]
if tables is not None:
    if any(tables.get(name) == "hangs" for name in named):
        os.execvp("sleep", ["sleep", "600"])
    report["tables"] += [tables[name] for name in named if name in tables]
if "--json" in words:
    print(json.dumps(report))
elif report is not None:
    pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
sys.exit(answer["code"])
"""
DONE: dict[str, Any] = {"outcome": "done", "tables": []}


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

        A `report`, or None, with those of the `tables` that are asked for; one that "hangs" does
        so. An exit `code`, a `log`. Shell commands that are run `first`, or a `program` of a shell
        instead of all that, with the words in "$@".
        """
        rest = {"tables": None, "code": 0, "log": "", "first": "", "program": ""}
        new = self._folder / "answers.new"
        new.write_text(json.dumps([{"report": DONE, **rest, **answer} for answer in answers]))
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
