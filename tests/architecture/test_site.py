"""The site: it builds strictly, needs no other host, and its search knows every code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memwal import trouble
from memwal.errors import MemWalError
from scripts.diagrams import IMAGES, PICTURES, draw

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# What a page loads by itself from elsewhere; links are only followed by people.
_LOADED = re.compile(r"<(?!a\b)\w[^>]*\s(?:src|href)=.?((?:https?:)?//[^\s>]*)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` builds; a dead link or anchor would fail it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    words = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    built = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout
    return folder / "site"


@pytest.mark.integration
def test_every_page_has_its_place(site: Path) -> None:
    pages = {page.relative_to(DOCS) for page in DOCS.rglob("*.md")}
    built = {page.relative_to(site) for page in site.rglob("*.html")}
    assert len(pages) > 20
    assert built - {Path("404.html")} == {page.with_suffix(".html") for page in pages}
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    assert {Path(page) for page in re.findall(r"[\w/]+\.md", nav)} == pages


@pytest.mark.integration
def test_nothing_comes_from_another_host_and_tables_are_whole(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "\\|" not in page.read_text(), page
        assert _LOADED.findall(page.read_text()) == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()[^;)]*//", style.read_text()) == [], style


@pytest.mark.integration
def test_the_search_knows_every_code(site: Path) -> None:
    index = json.loads((site / "search.json").read_text())
    titles = {entry["title"] for entry in index["items"]}
    codes = re.findall(r"^### (MW-\w+)$", (DOCS / "operate/trouble.md").read_text(), re.MULTILINE)
    assert len(codes) > 100
    assert set(codes) <= titles
    assert re.split(index["config"]["separator"], "MW-W01") == ["MW", "W01"]


def test_lists_and_tables_are_apart_from_paragraphs() -> None:
    """As the site's Markdown asks for; GitHub's doesn't."""
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert re.findall(r"^[^\s|#>*-].*\n(?:- |\|)", text, re.MULTILINE) == [], page
        assert re.findall(r"^ {1,3}(?:- |\d\. |```)", text, re.MULTILINE) == [], page


def test_a_picture_is_what_the_script_draws_and_is_shown() -> None:
    for name, picture in PICTURES.items():
        assert (IMAGES / name).read_text() == draw(picture), "run: make reference"
    shown = {
        Path(found).name
        for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]
        for found in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())
    }
    assert shown == {file.name for file in IMAGES.iterdir()}


def test_the_page_that_code_reads_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "### MW-W01" in trouble.read_page()
    installed, missing = tmp_path / "trouble.md", tmp_path / "missing.md"
    installed.write_text("installed")
    monkeypatch.setattr(trouble, "PLACES", (installed, missing))
    assert trouble.read_page() == "installed"
    monkeypatch.setattr(trouble, "PLACES", (missing, missing))
    with pytest.raises(MemWalError, match="install lance-memwal again"):
        trouble.read_page()
