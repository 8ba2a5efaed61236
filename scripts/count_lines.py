#!/usr/bin/env python3
"""Counts the product's code: its files, and their lines that hold code.

A line counts unless it is blank, a comment, or part of a docstring or an import. Generated code is
left out. `make check` prints the result.
"""

from __future__ import annotations

import ast
import subprocess
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("memwal", "airflow_plugins", "dags", "jobs")
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def list_product_files() -> list[Path]:
    """List the modules that are shipped or run, except generated ones."""
    listed = subprocess.run(
        ["git", "ls-files", *(f"{folder}/*.py" for folder in PRODUCT)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = (ROOT / name for name in listed.stdout.splitlines())
    return [f for f in files if "_generated" not in f.parts and f.exists()]


def count_code_lines(file: Path) -> int:
    """Count the lines of a module that hold code."""
    with file.open("rb") as source:
        held = {
            line
            for token in tokenize.tokenize(source.readline)
            if token.type not in _LAYOUT
            for line in range(token.start[0], token.end[0] + 1)
        }
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
            held -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def main() -> None:
    """Print the totals."""
    files = list_product_files()
    print(f"{len(files)} files, {sum(map(count_code_lines, files)):,} lines of code")


if __name__ == "__main__":
    main()
