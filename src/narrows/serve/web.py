"""The web page at /: files of a folder, sent as they are, with headers that let nothing in from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

router = APIRouter()

_FOLDER = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FILES = {f"/page/{file.name}": file for file in sorted(_FOLDER.iterdir()) if file.suffix in _TYPES}
_FILES["/"] = _FILES.pop("/page/index.html")
PATHS = frozenset(_FILES)  # need no API key: the page asks for one

_HEADERS = {
    # Scripts, styles and connections of this server only, no markup made of text, and no frame around the page.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


async def _send(request: Request) -> Response:
    file = _FILES[request.url.path]
    return Response(file.read_bytes(), headers=_HEADERS, media_type=_TYPES[file.suffix])


for _path in sorted(PATHS):
    router.add_api_route(_path, _send, methods=["GET", "HEAD"], include_in_schema=False)
