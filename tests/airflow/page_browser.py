"""A headless Chromium for the tests of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def launched() -> Iterator[Browser]:
    """CHROMIUM, or what is on PATH."""
    program = shutil.which(os.environ.get("CHROMIUM") or "chromium")
    assert program is not None, "no Chromium here; scripts/chromium.sh brings one"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


def shoot(page: Page, folder: Path, name: str) -> None:
    """Pictures of the window, light and dark: in MEMWAL_SCREENSHOTS, if that names a folder."""
    kept = Path(os.environ.get("MEMWAL_SCREENSHOTS") or folder)
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.screenshot(path=kept / f"{name}-{scheme}.png")
