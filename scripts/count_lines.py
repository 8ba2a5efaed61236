#!/usr/bin/env python3
"""Counts lines, parameters, words and options. `make check` prints it, as advice: nothing fails.

A line counts unless it is blank, a comment, or part of a docstring or an import. Generated code is
left out.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("memwal", "airflow_plugins", "dags", "jobs")
TEST_LINES_MAX = 62_000
MODULE_LINES_MAX = 600
PARAMETERS_MAX = 7
PAGE_WORDS_MAX = 1_200
SHOWN_MAX = 4


def list_files(*patterns: str) -> list[Path]:
    """List the files that git knows of, except generated ones."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = (ROOT / name for name in listed.stdout.splitlines())
    return [file for file in files if "_generated" not in file.parts and file.exists()]


def count_code_lines(file: Path) -> int:
    """Count the lines of a module that hold code."""
    text = file.read_text()
    return _count_lines(text, ast.parse(text))


def _count_lines(text: str, tree: ast.Module) -> int:
    lines = enumerate(text.split("\n"), 1)
    held = {at for at, line in lines if line.strip() and not line.lstrip().startswith("#")}
    left_out: set[int] = set()
    docstrings = 0
    for node in _list_statements(tree.body):
        docstrings += _is_docstring(node)
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
            left_out |= _lines_of(node)
    # Of any other long string each line is one of code, whatever it looks like.
    if text.count('"""') > 2 * docstrings:
        strings = (n for n in ast.walk(tree) if isinstance(n, ast.Constant | ast.JoinedStr))
        held.update(*map(_lines_of, strings))
    return len(held - left_out)


def _list_statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _list_statements(getattr(node, part, ()))


def _lines_of(node: Any) -> set[int]:
    return set(range(node.lineno, node.end_lineno + 1))


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _count_parameters(file: Path, tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in _list_statements(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield f"{node.name} in {_name(file)}", sum(a.arg not in ("self", "cls") for a in given)


def _count_commands() -> tuple[int, int]:
    """Count the commands of memwal, and the options that their helps show."""
    from typer.main import get_command

    from memwal.cli.app import app
    from memwal.cli.commands import SHARED

    waiting: list[Any] = [get_command(app)]
    commands = options = 0
    while waiting:
        command = waiting.pop()
        below = list(getattr(command, "commands", {}).values())
        waiting += below
        commands += not below
        options += sum(
            p.param_type_name == "option" and p.name not in SHARED and not p.hidden
            for p in command.params
        )
    return commands, options


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _over(found: Mapping[str, int], limit: int) -> str:
    """How many are over a limit, and the largest of them."""
    over = sorted((n for n in found if found[n] > limit), key=lambda n: -found[n])
    shown = ", ".join(f"{name} {found[name]:,}" for name in over[:SHOWN_MAX])
    return f"{len(over)} over {limit:,}" + (f": {shown}" if shown else "")


def advise() -> Iterator[tuple[str, str]]:
    """Yield what is counted, and what was found."""
    product = list_files(*(f"{folder}/*.py" for folder in PRODUCT))
    tests = sum(map(count_code_lines, list_files("tests/*.py")))
    code, lines, parameters = 0, {}, {}
    for file in product:
        text = file.read_text()
        tree = ast.parse(text)
        code += _count_lines(text, tree)
        lines[_name(file)] = text.count("\n")
        parameters.update(_count_parameters(file, tree))
    words = {_name(file): len(file.read_text().split()) for file in list_files("*.md")}
    commands, options = _count_commands()
    yield "product", f"{len(product)} files, {code:,} lines of code"
    yield "tests", f"{tests:,} lines of code; {TEST_LINES_MAX:,} are wanted"
    yield "modules", f"lines: {_over(lines, MODULE_LINES_MAX)}"
    yield "functions", f"parameters: {_over(parameters, PARAMETERS_MAX)}"
    yield "pages", f"{sum(words.values()):,} words; {_over(words, PAGE_WORDS_MAX)}"
    yield "commands", f"{commands}, with {options} options"


def main() -> None:
    """Print the advice."""
    for what, found in advise():
        print(f"{what:<14}{found}")


if __name__ == "__main__":
    main()
