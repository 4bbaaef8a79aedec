"""Makes the pictures of the dashboard in docs/images: `python -m tests.browser.screenshots` from the project's directory."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from tests.browser.conftest import FLAGS, PROGRAMS
from tests.e2e.federation import SECONDS, Federation, opened

from puf_lab.federations.processes import DashboardProcess, wait_until
from puf_lab.spec.federation import DataSpec, FederationSpec
from puf_server.core.config import Forgetting, Recipe

IMAGES = Path("docs/images")
_DAY = 86400.0
_COLOURS = 128
SETTING = FederationSpec(
    title="Clinics of the north",
    data=DataSpec(clients=8, options={"per_client": 60, "noise": 1.0}),
    recipe=Recipe(lr=0.05, batch_size=10, seed=7),
    rounds=24,
    forgetting=Forgetting(max_recovery_rounds=8),
)


def history(federation: Federation) -> None:
    """Trains, forgets two clients, and leaves one request of a client that is away."""
    federation.fleet(without=[6], wait=False)
    away = federation.run(6)
    federation.idle()
    control = federation.server.control
    control.export(federation.directory / "model.safetensors")
    federation.unlearn(3, "--reference", "case 2026-114").wait(SECONDS)
    federation.idle(control.extend(6))
    away.end()
    wait_until(lambda: not federation.alive(6), SECONDS, federation.server)
    control.forget("client-6", "letter of 20 October", time.time() - 28.5 * _DAY)
    federation.unlearn(5, "--reference", "case 2026-131").wait(SECONDS)
    federation.idle(control.extend(5))


def picture(browser: Any, url: str, name: str, width: int = 1180, height: int | None = None, **options: Any) -> None:
    """Writes a picture of the page; without a height, of the whole page."""
    context = browser.new_context(viewport={"width": width, "height": height or 900}, **options)
    page = context.new_page()
    page.goto(url)
    page.locator("#connection", has_text="live").wait_for()
    if page.locator("[data-chart]").count():
        page.locator("[data-chart] canvas").nth(2).wait_for()
    if page.locator("#verified").count():
        page.locator("#verified", has_text="VALID").wait_for()
    path = IMAGES / f"dashboard-{name}.png"
    page.screenshot(path=path, full_page=height is None)
    context.close()
    smaller(path)


def smaller(path: Path) -> None:
    """Replaces rare colours by the nearest frequent one. Frequent colours stay as they are."""
    picture = Image.open(path).convert("RGB")
    counted: Any = picture.getcolors(picture.width * picture.height)
    frequent = [colour for _, colour in sorted(counted, reverse=True)[:_COLOURS]]
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for colour in frequent for value in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    program = next(found for name in PROGRAMS if (found := shutil.which(name)))
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(
            Path(folder) / "federation", SETTING, init=["--plan-evaluate-every", "1", "--plan-keep-models", "4"]
        ) as federation,
    ):
        history(federation)
        state, log = federation.directory / "server", federation.directory / "logs" / "dashboard.log"
        (first,) = [t for t in federation.server.control.tickets() if t.client == "client-3"]
        with DashboardProcess(state, log) as shown, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
            picture(browser, f"{shown.url}/", "overview", height=1060)
            picture(browser, f"{shown.url}/requests", "requests", height=620)
            picture(browser, f"{shown.url}/requests/{first.id}", "request")
            picture(browser, f"{shown.url}/clients", "clients", height=620)
            picture(browser, f"{shown.url}/rounds", "rounds", height=900)
            picture(browser, f"{shown.url}/models", "models", height=900)
            picture(browser, f"{shown.url}/audit?event=ticket", "audit", height=900)
            picture(browser, f"{shown.url}/", "phone", width=375, height=1100, color_scheme="dark")
            browser.close()


if __name__ == "__main__":
    main()
