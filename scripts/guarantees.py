"""Writes docs/reference/held.md: the tests and models that hold each promise.

They are named in tests/promises.toml, by the mark that stands below the promise. Run it with
`make reference`. A test compares the page with what is there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROMISES = ROOT / "docs" / "promises"
PAGE = ROOT / "docs" / "reference" / "held.md"
HOLDERS = ROOT / "tests" / "promises.toml"
MODELS = ROOT / "tests" / "model"

_PROMISE = re.compile(r"([^\n]+(?:\n[^\n]+)*)\n\n<!--held:([\w-]+)-->$", re.M)
_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
_SENTENCE = re.compile(r"(?<=[^ .][.:;])\s")
_WORDS_MAX = 10
_HEAD = """# What holds each promise

Made by `make reference` out of what memwal [promises](../promises/guarantees.md), or
[does not](../promises/limits.md): the tests that check it, and the models that `make model`
searches within small bounds.
"""
Holders = Mapping[str, Mapping[str, list[str]]]


def read_holders() -> Holders:
    """Return what holds each promise, by its mark."""
    return tomllib.loads(HOLDERS.read_text())


def read_promises() -> str:
    """Return the pages with the promises and their marks."""
    return "\n".join((PROMISES / name).read_text() for name in ("guarantees.md", "limits.md"))


def write_page(promises: str, holders: Holders) -> str:
    """Return the page: how each promise that has a mark begins, and what holds it.

    A mark that nothing holds, a holder without a mark, and a test or a model that does not exist
    are a ValueError.
    """
    found = _PROMISE.findall(promises)
    marks = [mark for _, mark in found]
    if sorted(marks) != sorted(holders):
        odd = sorted({*marks} ^ {*holders}) or marks
        raise ValueError(f"each promise has one mark and one entry of {HOLDERS.name}: {odd}")
    parts = [_HEAD]
    for promise, mark in found:
        lines = "\n".join(f"- {line}" for line in _list_holders(holders[mark]))
        words = _SENTENCE.split(_LINK.sub(r"\1", " ".join(promise.replace("**", "").split())))[
            0
        ].split()
        begins = " ".join(words[:_WORDS_MAX]) + (" …" if len(words) > _WORDS_MAX else "")
        parts.append(f"## {mark}\n\n{begins}\n\n{lines}\n")
    return "\n".join(parts)


def _list_holders(held: Mapping[str, list[str]]) -> Iterator[str]:
    for test in held.get("tests", ()):
        path, _, name = test.partition("::")
        file = ROOT / path
        if not file.exists() or (name and f"def {name}(" not in file.read_text()):
            raise ValueError(f"no such test: {test}")
        yield f"`{test}`"
    variants = (MODELS / "variants.toml").read_text()
    for model in held.get("models", ()):
        name, _, variant = model.partition(": ")
        if not (MODELS / f"{name}.pml").exists() or variant not in variants:
            raise ValueError(f"no such model: {model}")
        shown = f"; what goes wrong otherwise: *{variant}*" if variant else ""
        yield f"the model `tests/model/{name}.pml`{shown}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(write_page(read_promises(), read_holders()))


if __name__ == "__main__":
    main()
