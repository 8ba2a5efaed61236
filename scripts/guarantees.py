"""Writes below each promise of docs/promises/guarantees.md the tests and models that hold it.

They are named in tests/promises.toml, by the mark that stands below the promise. Run it with
`make reference`. A test compares the page with what is there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "promises" / "guarantees.md"
HOLDERS = ROOT / "tests" / "promises.toml"
MODELS = ROOT / "tests" / "model"

_NOTE = re.compile(
    r"^<!-- held: ([\w-]+) -->\n(?:<details markdown>.*?^</details>\n)?", re.M | re.S
)
Holders = Mapping[str, Mapping[str, list[str]]]


def read_holders() -> Holders:
    """Return what holds each promise, by its mark."""
    return tomllib.loads(HOLDERS.read_text())


def write_notes(page: str, holders: Holders) -> str:
    """Return the page with a note below each mark.

    A mark that nothing holds, a holder without a mark, and a test or a model that does not exist
    are a ValueError.
    """
    marks = [match[1] for match in _NOTE.finditer(page)]
    if sorted(marks) != sorted(holders):
        odd = sorted({*marks} ^ {*holders}) or marks
        raise ValueError(f"each promise has one mark and one entry of {HOLDERS.name}: {odd}")
    return _NOTE.sub(lambda match: _write_note(match[1], holders[match[1]]), page)


def _write_note(mark: str, held: Mapping[str, list[str]]) -> str:
    lines = [f"<!-- held: {mark} -->", "<details markdown><summary>Held by</summary>", ""]
    lines += [f"- {line}" for line in _list_holders(held)]
    return "\n".join([*lines, "", "</details>", ""])


def _list_holders(held: Mapping[str, list[str]]) -> Iterator[str]:
    for test in held.get("tests", ()):
        path, _, name = test.partition("::")
        file = ROOT / path
        if not file.exists() or (name and f"def {name}(" not in file.read_text()):
            raise ValueError(f"no such test: {test}")
        words = name.removeprefix("test_").replace("_", " ").replace(" s ", "'s ")
        yield f"{words} (`{path}`)" if name else f"`{path}`"
    variants = (MODELS / "variants.toml").read_text()
    for model in held.get("models", ()):
        name, _, variant = model.partition(": ")
        if not (MODELS / f"{name}.pml").exists() or variant not in variants:
            raise ValueError(f"no such model: {model}")
        shown = f"; what goes wrong otherwise: *{variant}*" if variant else ""
        yield f"the model `tests/model/{name}.pml`{shown}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(write_notes(PAGE.read_text(), read_holders()))


if __name__ == "__main__":
    main()
