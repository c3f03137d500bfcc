"""The web page as it is sent."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from servers import Server


class Links(HTMLParser):
    """What a page loads, and whatever in it would run or paint without a file of its own."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [value for name in ("src", "href") if (value := given.get(name))]
        self.inline += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def test_the_page_comes_whole_from_the_server_and_without_a_key(tiny: Server) -> None:
    def get(path: str) -> Any:
        reply = tiny.client.get(path, headers={"Authorization": ""})
        assert reply.status_code == 200, path
        return reply

    links = Links(get("/").text)
    assert links.inline == []
    scripts = [link for link in links.links if link.endswith(".js")]
    assert scripts
    for link in links.links:
        text = get(link).text
        for name in re.findall(r'from "\./(\S+)"', text):
            assert "http" not in get(f"/page/{name}").text
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/page/style.css"])
def test_headers_let_nothing_in_from_elsewhere(tiny: Server, path: str) -> None:
    headers = tiny.client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert not any("unsafe" in value or "http" in value for value in policy.values())
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"].split(";")[0] in ("text/html", "text/javascript", "text/css")
    head = tiny.client.head(path)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", headers["content-length"])


def test_nothing_else_is_sent_from_the_folder(tiny: Server) -> None:
    for path in ("/page/", "/page/index.html", "/page/../web.py", "/page/%2e%2e/web.py", "/page/nothing.js"):
        assert tiny.client.get(path).status_code == 404, path
    assert tiny.post("/").status_code == 405
