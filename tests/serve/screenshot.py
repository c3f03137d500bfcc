"""Takes the picture of the web page in the documents: a real server, a real answer, guesses on.

python tests/serve/screenshot.py docs/img/page.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browser import INSTALL, browse, chromium
from servers import Server

FIRST = "Write a Python class for a bank account with the methods deposit, withdraw and balance."
SECOND = "Now write the class again, with a method transfer."


def take(picture: Path) -> None:
    """Serves the default model, asks twice, and takes the picture when both answers are there."""
    if chromium() is None:
        sys.exit(f"there is no Chromium: {INSTALL}")
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name) / "log", "smollm2", "--stack", "draft=ngram:k=4 pace=fixed")
        try:
            server.ready()
            with browse(
                Path(name) / "profile", viewport={"width": 1180, "height": 820}, color_scheme="light"
            ) as context:
                page = context.pages[0]
                page.goto(server.url)
                settings = page.locator("#settings summary")
                settings.click()
                page.fill("#temperature", "0")
                page.fill("#max-tokens", "135")
                page.fill("#prompt", FIRST)
                page.press("#prompt", "Enter")
                answers = page.locator("article.assistant .note", has_text="tokens/s")
                answers.first.wait_for()
                page.fill("#max-tokens", "400")
                settings.click()
                page.fill("#prompt", SECOND)
                page.press("#prompt", "Enter")
                answers.nth(1).wait_for()
                page.locator("#state", has_text="idle").wait_for()
                page.screenshot(path=picture)
        finally:
            server.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
