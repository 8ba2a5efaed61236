"""Codes of messages, and the page that explains them: each code in use has one entry."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import typer

from memwal.cli.app import app
from memwal.errors import Corruption, MemWalError, Refused, Unsupported
from tests.architecture.files import ROOT, modules
from tests.architecture.test_errors import import_all, subclasses

_CODE = re.compile(r"MW-[A-Z]\d\d")
_ENTRY = re.compile(
    r"- \*\*What\*\* \(exit (\d)\): \S.*?\n- \*\*Safe\*\*: \S.*?\n- \*\*Do\*\*: \S.*", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Use:
    """A place that makes an error with a code; `template` is its text without what is put in."""

    place: str
    exit_code: int
    code: str
    template: str


@cache
def uses() -> list[Use]:
    import_all()
    bases = (Refused, Corruption, Unsupported)
    kinds = {kind.__name__: kind for base in bases for kind in (base, *subclasses(base))}
    return [use for name, text in modules().items() for use in _uses(name, text, kinds)]


def _uses(module: str, text: str, kinds: dict[str, type[MemWalError]]) -> Iterator[Use]:
    if not any(kind in text for kind in kinds):
        return
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call):
            continue
        kind = kinds.get(getattr(call.func, "attr", getattr(call.func, "id", "")))
        if kind is not None:
            code, said = call.args
            yield Use(
                place=f"{module}:{call.lineno}",
                exit_code=kind.exit_code,
                code=str(code.value) if isinstance(code, ast.Constant) else "",
                template=template_of(said),
            )


def template_of(text: ast.expr) -> str:
    if isinstance(text, ast.JoinedStr):
        return "".join(template_of(part) for part in text.values)
    return str(text.value) if isinstance(text, ast.Constant) else "…"


def page() -> str:
    return (ROOT / "docs/operate/trouble.md").read_text()


def entries() -> list[tuple[str, str]]:
    """Codes with what is below them, in the page's order."""
    return re.findall(r"^### (\S+)\n\n(.*?)(?=\n#|\Z)", page(), re.MULTILINE | re.DOTALL)


def test_every_refusal_has_a_code_and_a_text_has_one() -> None:
    assert len(uses()) > 250
    assert [use.place for use in uses() if not _CODE.fullmatch(use.code)] == []
    codes = defaultdict(set)
    for use in uses():
        if len(re.sub(r"\W", "", use.template)) > 10:
            codes[use.template].add(use.code)
    assert {text: found for text, found in codes.items() if len(found) > 1} == {}


def test_every_code_has_one_entry_in_order_below_its_letter_and_no_other_has() -> None:
    assert [code for code, _ in entries()] == sorted({use.code for use in uses()})
    letter = ""
    for line in re.findall(r"^##.*", page(), re.MULTILINE):
        letter = line[3] if line.startswith("## ") else letter
        assert not line.startswith("### MW-") or line.startswith(f"### MW-{letter}"), line


def test_an_entry_says_what_happened_what_is_safe_and_what_to_do() -> None:
    exits = defaultdict(set)
    for use in uses():
        exits[use.code].add(str(use.exit_code))
    for code, text in entries():
        found = _ENTRY.match(text)
        assert found is not None, code
        assert exits[code] == {found[1]}, code


def test_options_on_the_page_exist() -> None:
    def options(command: object) -> Iterator[str]:
        for option in getattr(command, "params", ()):
            yield from (*option.opts, *option.secondary_opts)
        for below in getattr(command, "commands", {}).values():
            yield from options(below)

    known = set(options(typer.main.get_command(app)))
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page()))
    assert len(told) > 15
    assert told <= known
