"""Rendering of templates, with the values and headers of every page."""

import json
import re
from functools import cache
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from api.clients.auth import ANONYMOUS, Subject
from api.web import assets
from records import targets
from scheduler import estimate
from tuner import formatting

#: Nothing is loaded from other sites, and no script or style is inline.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "tuner_theme"


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a page; with ``?fragment`` only the parts that change while it is open."""
    theme = request.cookies.get(THEME_COOKIE, "auto")
    subject: Subject | None = getattr(request.state, "subject", None)
    common = {
        "path": request.url.path,
        "here": _here(request),
        "posted": request.method == "POST",
        "fragment": "fragment" in request.query_params,
        "theme": theme if theme in THEMES else "auto",
        "subject": subject,
        "signed_in": subject is not None and subject.name != ANONYMOUS,
    }
    text = environment().get_template(template).render({**common, **values})
    return HTMLResponse(text, status, headers=HEADERS)


@cache
def environment() -> Environment:
    """Return the templates, which escape everything they print."""
    templates = Environment(
        loader=PackageLoader("api.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= _FILTERS
    templates.globals |= {
        "asset": assets.address,
        "plotly_styles": assets.plotly_styles,
        "ratio": ratio,
        "dash": formatting.DASH,
    }
    return templates


def ratio(part: float, whole: float | None) -> float | None:
    """Return a share from 0 to 1, or None without a whole."""
    if whole is None:
        return None
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 1.0


def _data(value: Any) -> Markup:
    """Format JSON that is safe inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _commands(text: str) -> Markup:
    """Show what is between backticks, such as a command that helps, as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _breakable(name: str) -> Markup:
    """Let the name of a task break before its shape, rather than inside."""
    return escape(name).replace("[", Markup("<wbr>["))


def _here(request: Request) -> str:
    """Return the address of the page on this server, to return to."""
    query = request.url.query
    return request.url.path + (f"?{query}" if query and "fragment" not in query else "")


def _gflops(flop: float, secs: float | None) -> str:
    return formatting.throughput(estimate.gflops(flop, secs))


_FILTERS = {
    "ms": formatting.milliseconds,
    "short_ms": formatting.short_milliseconds,
    "clock": formatting.clock,
    "ago": formatting.age,
    "stamp": formatting.utc_time,
    "count": formatting.count,
    "counted": formatting.counted,
    "device_name": targets.device_name,
    "percent": formatting.percent,
    "size": formatting.size,
    "throughput": formatting.throughput,
    "gflops": _gflops,
    "target_name": formatting.target_name,
    "breakable": _breakable,
    "commands": _commands,
    "data": _data,
    "plain": formatting.plain,
}
