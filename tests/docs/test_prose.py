"""The prose of the repository keeps the rules of CONTRIBUTING.md, as far as they can be counted."""

import pytest

from tests.docs.documents import ROOT
from tests.docs.prose import ADVICE, SUFFIXES, check, check_document, check_python

_FOLDERS = ("records", "scheduler", "api", "benchmarks", "docs", "website", "tuner", "tests")


def test_prose_keeps_the_rules() -> None:
    """No docstring opening, phrase or identifier that CONTRIBUTING.md bans."""
    paths = [*ROOT.iterdir(), *(path for name in _FOLDERS for path in (ROOT / name).rglob("*"))]
    findings = [
        f"{path.relative_to(ROOT)}:{line}: {rule} {text!r}: {ADVICE[rule]}"
        for path in sorted(paths)
        if path.suffix in SUFFIXES and path.name != "prose.py"  # has the phrases themselves
        for line, rule, text in check(path)
    ]

    assert not findings, "\n".join(["", *findings])


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""What ' 'a module holds."""\n', "opening"),
        ('def f():\n    """Whether ' 'it works."""\n', "opening"),
        ('class C:\n    """Row.\n\n        name: Of ' 'the row.\n    """\n', "fragment"),
        ("# some" "body waits\n", "phrase"),
        ('text = "this is ' 'no reason"\n', "phrase"),
        ("fou" "nd = 1\n", "name"),
        ("MO" "ST_ROWS = 1\n", "name"),
    ],
)  # fmt: skip
def test_code_that_breaks_a_rule_is_reported(source: str, rule: str) -> None:
    """Each rule of the checker catches its example."""
    assert [finding.rule for finding in check_python(source)] == [rule]


def test_code_that_keeps_the_rules_passes() -> None:
    """Plain docstrings and names have no findings."""
    source = '"""Rows of a table."""\n\nMAX_ROWS = 1  # there is no more space\n'

    assert not list(check_python(source))


def test_quotations_in_documents_are_exempt() -> None:
    """Inline code, code blocks and quotations may hold banned phrases; other text may not."""
    phrase = "no" "body"  # fmt: skip
    text = f"`{phrase}`\n\n```\n{phrase}\n```\n\n> {phrase}\n\nand {phrase}\n"

    assert [finding.line for finding in check_document(text)] == [9]
