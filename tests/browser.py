"""A real browser for the tests of pages, and pages that notice every error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import needs

DESKTOP, PHONE = (1200, 900), (390, 844)


@contextmanager
def open_browser() -> Iterator[Any]:
    chromium = needs.tool("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        needs.missing("playwright is not installed: pip install -e '.[test]'")
    with sync_playwright() as playwright:
        root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium's sandbox refuses to work for root
        found = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"] if root else [])
        try:
            yield found
        finally:
            found.close()


@contextmanager
def open_page(browser: Any, url: str, size: tuple[int, int] = DESKTOP, dark: bool = False, only: str | None = None) -> Iterator[Any]:
    """A page that may load nothing but `url` (and what stands under `only`); at the end nothing must have gone wrong on it."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light", has_touch=size == PHONE
    )
    wrong: list[str] = []
    asked: list[str] = []

    def route(one: Any) -> None:
        asked.append(one.request.url)
        allowed = one.request.url == url or (only is not None and one.request.url.startswith(only)) or one.request.url.startswith("data:")
        if not allowed:
            wrong.append(f"asked for {one.request.url}")
        one.continue_() if allowed else one.abort()

    context.route("**/*", route)
    page = context.new_page()
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(url)
    try:
        yield page
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"the page is {overflow} px wider than the window"
        assert not wrong, wrong
    finally:
        context.close()
