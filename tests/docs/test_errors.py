"""docs/errors.md lists the codes of errors of models that the code raises, and no others."""

import ast
import re
from collections.abc import Iterator
from typing import get_args

from tests.docs.documents import ROOT
from tuner.errors import LINK_CODE, ModelCode

_CODES = {*get_args(ModelCode), LINK_CODE}


def _raised() -> Iterator[tuple[str, str | None]]:
    """Yield the place and the code of every ModelError that the package makes."""
    texts = {path: path.read_text() for path in (ROOT / "tuner").rglob("*.py")}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text if "ModelError(" in text else "")):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ModelError":
                codes = [item.value for item in node.keywords if item.arg == "code"]
                value = codes[0] if codes else None
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                if not isinstance(value, ast.Attribute):  # one that is passed on
                    yield place, str(value.value) if isinstance(value, ast.Constant) else None


def test_every_code_is_documented_with_cause_and_remedy() -> None:
    """The table of docs/errors.md has a row of three cells for each code."""
    text = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \| (.+) \|$", text, re.MULTILINE)

    assert [code for code, *_ in rows] == sorted(_CODES)


def test_every_model_error_has_a_code() -> None:
    """Each place that raises one names its code, and each code but the default has a place."""
    raised = list(_raised())

    assert [place for place, code in raised if code is None] == []
    assert {code for _, code in raised} | {"bad-model", LINK_CODE} == _CODES
