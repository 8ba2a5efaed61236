"""Two builds of memwal: the one of this checkout, and the one before it, unpacked out of git.

Both run in this environment's Python, on its libraries. Commands are forks (`nursery`), each of a
process that has imported its own build.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.nursery import ROOT, Started, run_memwal, start, start_memwal

_NAMED = Path(__file__).with_name("previous.toml")


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build, and the folder that its package is in."""

    name: str
    folder: Path

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return run_memwal(*arguments, source=self.folder)

    def start(self, *arguments: object) -> Started:
        """Start a command."""
        return start_memwal(*arguments, source=self.folder)

    def tell(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        """The document that a command prints, which ends with this exit code."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, (self.name, arguments, done.stdout, done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def call(self, function: Callable[..., object], *arguments: Any) -> Any:
        """What a function of these tests prints as JSON, where this build is imported."""
        with start(function, *arguments, source=self.folder) as process:
            out, err = process.communicate()
        assert process.wait() == 0, err
        return json.loads(out)


CURRENT = Build(name="current", folder=ROOT)
_kept: list[TemporaryDirectory[str]] = []


@cache
def previous() -> Build:
    """The build before this one. Skips the test where git does not have it."""
    name, commit = find_previous()
    packed = _git("archive", "--format=tar", commit, "memwal")
    if packed is None:
        pytest.skip(
            f"{name} is not here to be tested beside: this is no clone, or one without its "
            f"history (git fetch --unshallow --tags brings {commit})"
        )
    _kept.append(TemporaryDirectory(prefix="memwal-previous-"))
    folder = Path(_kept[-1].name)
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return Build(name=name, folder=folder)


def find_previous() -> tuple[str, str]:
    """The newest tag before the present commit, or else what is named beside this file."""
    tag = _git("describe", "--tags", "--match", "v[0-9]*", "--abbrev=0", "HEAD^")
    if tag is not None:
        return tag.decode().strip(), tag.decode().strip()
    named = tomllib.loads(_NAMED.read_text())
    return named["name"], named["commit"]


def _git(*arguments: str) -> bytes | None:
    """What git prints; None where it fails, or is not there."""
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
