"""A real browser: the system's Chromium, driven by playwright. The tests are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

# Chromium must not ask the network for anything by itself.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--enable-precise-memory-info",
]  # fmt: skip
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

Open = Callable[..., Any]


# Not for the session: while playwright runs, no other test in this process can run an event loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no browser: install chromium to run these tests")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def new_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens pages with the given options of a browser context. No page may report an error or load a foreign address."""
    contexts: list[Any] = []
    faults: list[str] = []

    def watch(page: Any) -> None:
        page.on("pageerror", lambda error: faults.append(f"script error: {error}"))
        page.on("console", lambda m: faults.append(m.text) if "Content Security Policy" in m.text else None)
        page.on(
            "request",
            lambda r: None if r.url.startswith(("http://127.0.0.1:", "blob:")) else faults.append(f"foreign: {r.url}"),
        )

    def new(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1180, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        watch(page)
        return page

    yield new
    for context in contexts:
        context.close()
    assert faults == []
