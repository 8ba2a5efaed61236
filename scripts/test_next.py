#!/usr/bin/env python3
"""`make test-next`: runs tests on the newest Lance, and shows what is different from the pinned.

Versions first. Then the tests that fail there; these are run once more on what is pinned, and those
that pass on that are what the newest Lance changes. Arguments are pytest's, in place of the tests
that touch Lance. Ends with 1 when any test fails there and not here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINNED = ROOT / os.environ.get("VENV", ".venv")
NEXT = ROOT / os.environ.get("VENV_NEXT", ".venv-next")
LANCEDB = ROOT / os.environ.get("VENV_LANCEDB", ".venv-lancedb")
TOUCHING_LANCE = ("tests/format", "tests/store", "tests/jobs", "tests/read", "tests/ingest")
DEFAULT = (*TOUCHING_LANCE, "-q", "-m", "not spark")
NOTHING_RAN = 5


def main(arguments: Sequence[str]) -> int:
    """Show the versions, run the tests, show the difference; the exit code."""
    show("versions", compare(list_packages(PINNED), list_packages(NEXT)))
    show("versions of clients", compare(list_packages(LANCEDB), list_packages(NEXT / "lancedb")))
    code, failed = run(NEXT, arguments or DEFAULT)
    if code not in (0, 1, NOTHING_RAN):
        return code
    here = run(PINNED, [*failed, "-q"])[1] if failed else []
    show("fail here as well", here)
    different = [test for test in failed if test not in here]
    show("fail on the newest Lance alone", different)
    return 1 if different else 0


def show(what: str, lines: Iterable[str]) -> None:
    """Print a heading and its lines."""
    print(f"--- {what}", *(lines or ["none"]), sep="\n    ", flush=True)


def compare(pinned: Mapping[str, str], newest: Mapping[str, str]) -> list[str]:
    """A line for each package that differs."""
    return [
        f"{name}: {pinned.get(name, 'none')} -> {newest.get(name, 'none')}"
        for name in sorted({*pinned, *newest})
        if pinned.get(name) != newest.get(name)
    ]


def list_packages(venv: Path) -> dict[str, str]:
    """The versions of what is installed there, without this checkout; none without the folder."""
    python = venv / "bin" / "python"
    if not python.exists():
        return {}
    listed = [str(python), "-m", "pip", "list", "--format=json", "--exclude-editable"]
    out = subprocess.run(listed, check=True, stdout=subprocess.PIPE).stdout
    return {found["name"].lower(): found["version"] for found in json.loads(out)}


def run(venv: Path, arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Run pytest there; its exit code, and what failed."""
    with tempfile.TemporaryDirectory() as cache:
        command = [str(venv / "bin" / "python"), "-m", "pytest", "-o", f"cache_dir={cache}"]
        code = subprocess.run([*command, *arguments], cwd=ROOT, env=environment(venv)).returncode
        file = Path(cache) / "v/cache/lastfailed"
        return code, sorted(json.loads(file.read_text())) if file.exists() else []


def environment(venv: Path) -> dict[str, str]:
    """On the newest pylance memwal takes it for tested, and clients are the newest, too."""
    if venv != NEXT:
        return dict(os.environ)
    path = [str(ROOT / "tests/support/next_lance"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "VENV": str(NEXT),
        "VENV_LANCEDB": str(NEXT / "lancedb"),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
