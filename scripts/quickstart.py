"""The quickstart as somebody reads it who pastes block after block into one shell.

A test follows it in the checkout, `make dist` in environments that have the wheels alone.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "start" / "quickstart.md"
LANCEDB = ROOT / ".venv-lancedb" / "bin" / "python"
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
)
# All before it needs memwal alone.
AIRFLOW = next(i for i, (_, block) in enumerate(BLOCKS) if "AIRFLOW_HOME" in block)
INSTALLS, LANCEDBS, SPARKS = "make setup", "import lancedb", "memwal submit"
# The order that was paid, pending generations, their first merge, a table without a fault.
_SHOWN = (r"^ +7 +paid +9\.5$", "pending", "0 -> ", "verify: done")
# What would bring a checkout or a configuration into a reader's shell.
_FOREIGN = ("MAKE", "MFLAGS", "MEMWAL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class BlockFailed(Exception):
    """A block of the page ended with an error: the block, and the end of what it printed."""


class Reader:
    """One shell, in a home folder of its own, and Python where a block is Python."""

    def __init__(self, home: Path, *, folder: Path, environment: Path | None = None) -> None:
        """Start in `folder`, with the virtual environment activated if one is given."""
        self.home = home
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        self.variables = {**kept, "HOME": str(home), "COLUMNS": "200"}
        if environment:
            self.variables["VIRTUAL_ENV"] = str(environment)
            self.variables["PATH"] = f"{environment / 'bin'}:{kept['PATH']}"

    def paste(self, block: str) -> str:
        """Into the shell; what it prints. Folder and variables stay for the next block."""
        left = self.home / "shell"
        shown = self._run(["bash", "-ec", f"{block}\n(pwd; env -0) > {left}"])
        folder, _, variables = left.read_text().partition("\n")
        self.folder = Path(folder)
        self.variables = dict(v.split("=", 1) for v in variables.split("\0") if v)
        return shown

    def follow(self, *, skip: Sequence[str] = ()) -> Iterator[str]:
        """Every block before Airflow's but those that have one of the words; what each prints."""
        for language, block in BLOCKS[:AIRFLOW]:
            if any(word in block for word in skip):
                continue
            if language == "sh":
                yield self.paste(block)
            else:
                python = str(LANCEDB) if LANCEDBS in block else "python"
                yield self._run([python, "-c", block])

    def _run(self, words: list[str]) -> str:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BlockFailed(
                f"exit code {done.returncode} of\n{words[-1]}\n"
                f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )
        return done.stdout


def check_shown(shown: str) -> None:
    """That the page was followed to its end. Raises BlockFailed with what was not printed."""
    missing = [text for text in _SHOWN if not re.search(text, shown, re.MULTILINE)]
    if missing:
        raise BlockFailed(f"the quickstart printed nothing like {missing}:\n{shown}")
