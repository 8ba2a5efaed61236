"""Codes of messages, and the page that explains them: each code in use has one entry."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from memwal.cli.app import app
from memwal.errors import Corruption, MemWalError, Refused, Unsupported
from tests.architecture.test_errors import import_all, subclasses

import_all()

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operate/trouble.md").read_text()
KINDS = {
    kind.__name__: kind for base in (Refused, Corruption, Unsupported)
    for kind in (base, *subclasses(base))
}  # fmt: skip

_CODE = re.compile(r"MW-[A-Z]\d\d")
_ENTRY = re.compile(
    r"- \*\*What\*\* \(exit (\d)\): \S.*?\n- \*\*Safe\*\*: \S.*?\n- \*\*Do\*\*: \S.*", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Use:
    """A place that makes an error with a code; `template` is its text without what is put in."""

    place: str
    kind: type[MemWalError]
    code: str | None
    template: str


def uses() -> Iterator[Use]:
    for folder in ("memwal", "airflow_plugins", "jobs"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for call in ast.walk(ast.parse(file.read_text())):
                if not isinstance(call, ast.Call):
                    continue
                name = ast.unparse(call.func).rpartition(".")[2]
                if name in KINDS:
                    code, text = call.args
                    yield Use(
                        place=f"{file.relative_to(ROOT)}:{call.lineno}",
                        kind=KINDS[name],
                        code=code.value if isinstance(code, ast.Constant) else None,  # type: ignore[arg-type]
                        template=template_of(text),
                    )


def template_of(text: ast.expr) -> str:
    if isinstance(text, ast.JoinedStr):
        return "".join(template_of(part) for part in text.values)
    return str(text.value) if isinstance(text, ast.Constant) else "…"


def entries() -> list[tuple[str, str]]:
    """Codes with what is below them, in the page's order."""
    return re.findall(r"^### (\S+)\n\n(.*?)(?=\n#|\Z)", PAGE, re.MULTILINE | re.DOTALL)


USES = list(uses())
CODES = {use.code for use in USES}


def test_every_refusal_has_a_code() -> None:
    assert len(USES) > 250
    assert [u.place for u in USES if u.code is None or not _CODE.fullmatch(u.code)] == []


def test_every_code_has_one_entry_in_order_and_no_other_has() -> None:
    found = [code for code, _ in entries()]
    assert found == sorted(CODES)  # type: ignore[type-var]


def test_an_entry_is_below_its_letter() -> None:
    letter = ""
    for line in re.findall(r"^##.*", PAGE, re.MULTILINE):
        if line.startswith("## "):
            letter = line[3]
        elif line.startswith("### MW-"):
            assert line.startswith(f"### MW-{letter}"), line


@pytest.mark.parametrize(("code", "text"), entries())
def test_an_entry_says_what_happened_what_is_safe_and_what_to_do(code: str, text: str) -> None:
    found = _ENTRY.match(text)
    assert found is not None
    assert {str(use.kind.exit_code) for use in USES if use.code == code} == {found[1]}


def test_a_text_has_one_code() -> None:
    codes = defaultdict(set)
    for use in USES:
        if len(re.sub(r"\W", "", use.template)) > 10:
            codes[use.template].add(use.code)
    assert {text: found for text, found in codes.items() if len(found) > 1} == {}


def test_options_on_the_page_exist() -> None:
    def options(command: object) -> Iterator[str]:
        for option in getattr(command, "params", ()):
            yield from (*option.opts, *option.secondary_opts)
        for below in getattr(command, "commands", {}).values():
            yield from options(below)

    known = set(options(typer.main.get_command(app)))
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert len(told) > 15
    assert told <= known
