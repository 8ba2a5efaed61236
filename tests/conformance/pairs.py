"""The conformance table: sentences of the documents memwal follows, and the tests that hold them.

Each `*.toml` beside this file has `[[pair]]` tables:

- `id`: unique over all files; `section`: a heading there; `sentence`: the document's words, quoted;
- `tests`: node ids without parameters; `reason`: why there are none, or what they leave open;
- `pylance`: what pylance 14 does otherwise; `evidence`: the tests that show it.

A file about another document than the MemWAL spec says so: `[document]`, `title` and `address`.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """What is quoted, and where it can be read."""

    title: str
    address: str


SPEC = Document(
    title="Lance MemTable & WAL Specification", address="https://lance.org/format/table/mem_wal/"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One sentence and what holds it."""

    id: str
    area: str
    document: Document = SPEC
    section: str
    sentence: str
    tests: tuple[str, ...] = ()
    reason: str | None = None
    pylance: str | None = None
    evidence: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """Every test that the pair names."""
        return tuple(dict.fromkeys((*self.tests, *self.evidence)))


@cache
def load() -> list[Pair]:
    """All pairs, file by file. Raises TypeError for an unknown key, KeyError for a missing one."""
    return [pair for path in sorted(HERE.glob("*.toml")) for pair in _load(path)]


def _load(path: Path) -> Iterator[Pair]:
    document = tomllib.loads(path.read_text())
    source = Document(**document.pop("document")) if "document" in document else SPEC
    if set(document) != {"pair"}:
        raise TypeError(f"{path.name}: expected [[pair]] tables only, found {sorted(document)}")
    for table in document["pair"]:
        lists = {name: tuple(table.pop(name, ())) for name in ("tests", "evidence")}
        yield Pair(area=path.stem, document=source, **table, **lists)


@cache
def functions(file: str) -> frozenset[str]:
    """The test functions that a file defines; empty when there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def exists(test: str) -> bool:
    """Whether a node id names a test function of this repository."""
    file, _, name = test.partition("::")
    return name in functions(file)


def problems(pairs: list[Pair]) -> list[str]:
    """What is wrong with a table; empty when it is sound."""
    found = []
    seen: set[str] = set()
    for pair in pairs:
        if pair.id in seen:
            found.append(f"{pair.id}: the id is there twice")
        seen.add(pair.id)
        found += [f"{pair.id}: no such test: {test}" for test in pair.named if not exists(test)]
        if not pair.tests and not (pair.reason or "").strip():
            found.append(f"{pair.id}: neither a test nor a reason")
        if bool(pair.pylance) != bool(pair.evidence):
            found.append(f"{pair.id}: what pylance does otherwise needs evidence, and evidence it")
        if not pair.sentence.strip() or not pair.section.strip():
            found.append(f"{pair.id}: no sentence, or no section")
    return found


def flat(text: str) -> str:
    """Text with its line breaks and runs of spaces as single spaces."""
    return " ".join(text.split())
