"""A headless Chromium for the web page: the system's own, driven by Playwright, which brings none along."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

INSTALL = "apt-get install chromium"
FLAGS = (
    "--no-sandbox",  # which the root of a container cannot set up
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str | None:
    """Where the browser is."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browse(profile: Path, **options: Any) -> Iterator[BrowserContext]:
    """A browser with an empty profile; `options` are Playwright's for a context."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium(), headless=True, args=FLAGS, **options
        )
        yield context
        context.close()


REFUSALS = re.compile(r"responded with a status of 40[01]\b")  # the browser's own line on an answer of the server


class Watch:
    """What a page must never do: report an error, break its own policy, or ask anybody but its server."""

    def __init__(self, page: Page, origin: str) -> None:
        self.wrong: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda r: self._request(r.url, origin))
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective))"
        )

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not REFUSALS.search(text):
            self.wrong.append(text)

    def _request(self, url: str, origin: str) -> None:
        self.requests.append(url)
        if not url.startswith(f"{origin}/"):
            self.wrong.append(f"a request to {url}")
