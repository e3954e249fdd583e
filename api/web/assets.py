"""Style sheets, scripts and the icon, at addresses that contain the hash of their content."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

router = APIRouter(include_in_schema=False)

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PLOTLY = "plotly.min.js"
_IMMUTABLE = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class Asset:
    """A file of the dashboard."""

    content_type: str
    digest: str
    plain: bytes

    @cached_property
    def packed(self) -> bytes:
        """The content compressed by gzip, on first use."""
        return gzip.compress(self.plain, compresslevel=6, mtime=0)


@cache
def load(name: str) -> Asset:
    """Read an asset once.

    Raises:
        KeyError: If no asset has that name.
    """
    plain = _sources()[name].read_bytes()
    return Asset(
        content_type=_TYPES[name[name.rindex(".") :]],
        digest=hashlib.sha256(plain).hexdigest()[:16],
        plain=plain,
    )


def address(name: str) -> str:
    """Return the address of an asset, with the hash of its content."""
    return f"/static/{load(name).digest}/{name}"


@cache
def plotly_styles() -> str:
    """Return the ids of the style elements that Plotly adds to a page when it loads.

    The policy of the pages forbids them. They are for maps, which no page draws, and Plotly
    skips those whose id exists already.
    """
    ids = re.findall(rb'if\(!document\.getElementById\("([0-9a-f]{64})"\)\)', load(_PLOTLY).plain)
    return " ".join(sorted({element_id.decode() for element_id in ids}))


@router.get("/static/{digest}/{name}")
def read_asset(request: Request, digest: str, name: str) -> Response:
    """Serve an asset; at the address of its hash it never changes."""
    if name not in _sources():
        raise HTTPException(404, f"no asset {name!r}")
    return _answer(request, load(name), _IMMUTABLE if digest == load(name).digest else "no-cache")


@router.get("/favicon.ico")
def read_icon(request: Request) -> Response:
    """Serve the icon at the address that browsers request unasked."""
    return _answer(request, load("favicon.svg"), "public, max-age=86400")


def _answer(request: Request, asset: Asset, caching: str) -> Response:
    packs = "gzip" in request.headers.get("accept-encoding", "")
    tag = f'"{asset.digest}{"-gzip" if packs else ""}"'
    headers = {
        "cache-control": caching,
        "etag": tag,
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if packs:
        headers["content-encoding"] = "gzip"
    body = asset.packed if packs else asset.plain
    return Response(body, media_type=asset.content_type, headers=headers)


@cache
def _sources() -> dict[str, Path]:
    """Return the files to serve; no other file is, whatever the address."""
    own = Path(__file__).with_name("static").iterdir()
    shown = {file.name: file for file in own if file.suffix in _TYPES}
    # Located without importing, which takes a second, because only one file is needed.
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        return shown
    return {**shown, _PLOTLY: Path(spec.origin).parent / "package_data" / _PLOTLY}
