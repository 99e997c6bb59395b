"""The web page: the files of `service/web`, read once; they hold no data, and ask the API as any other client does."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem

router = APIRouter()

FOLDER = Path(__file__).parents[1] / "web"
#: What is served, by the end of a file's name; licences stay in the repository.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: A page loads and asks nothing but this service, runs no text that it is shown, and is in no other page's frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

#: In a script or style of ours: lines that are comments, and what lines begin with.
_FOR_READERS = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/)[\s\S])*\*/[ \t]*\n|//.*\n)|^[ \t]+", re.MULTILINE)


@dataclass(frozen=True)
class WebFile:
    """One file as it is answered, as it is and compressed."""

    content: bytes
    gzipped: bytes
    media_type: str
    #: Without quotation marks.
    digest: str

    def form_for(self, encodings: str) -> tuple[bytes, str, Mapping[str, str]]:
        """Content, ETag and headers for a browser that takes these encodings (RFC 9110, 12.5.3)."""
        if _takes_gzip(encodings):
            return self.gzipped, f'"{self.digest}-gzip"', {"Content-Encoding": "gzip"}
        return self.content, f'"{self.digest}"', {}


@cache
def web_files() -> Mapping[str, WebFile]:
    """By their names below `/web/`, such as `page.js` or `vendor/uplot-1.6.32.js`."""
    paths = [path for path in sorted(FOLDER.rglob("*")) if path.suffix in TYPES]
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in paths}


@router.get("/", operation_id="show_page", include_in_schema=False)
async def page(request: Request, _: Annotated[Parameters, Query()]) -> Response:
    """The page itself."""
    return _answer(request, "index.html")


@router.get("/web/{name:path}", operation_id="show_page_file", include_in_schema=False)
async def file(request: Request, name: str, _: Annotated[Parameters, Query()]) -> Response:
    """A script, style or picture of the page."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    found = web_files().get(name)
    if found is None:
        raise ApiProblem(404, "not_found", "the page has no such file")
    # Asked again each time, so that a page never mixes two versions of the service for longer than one load.
    content, etag, of_form = found.form_for(request.headers.get("accept-encoding", ""))
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "ETag": etag,
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=found.media_type, headers={**headers, **of_form})


def _read(path: Path) -> WebFile:
    content = path.read_bytes()
    if path.parent == FOLDER and path.suffix in (".js", ".css"):
        # Nothing of the page is minified, but what only its readers need is not sent.
        content = _FOR_READERS.sub("", content.decode()).encode()
    digest = hashlib.sha256(content).hexdigest()[:32]
    return WebFile(content, gzip.compress(content, mtime=0), TYPES[path.suffix], digest)


def _takes_gzip(encodings: str) -> bool:
    for part in encodings.lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "").rstrip("0") not in ("q=", "q=0.")
    return False
