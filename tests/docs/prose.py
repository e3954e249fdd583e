"""Findings in prose that a program can count: opening words, banned phrases, banned identifiers.

CONTRIBUTING.md has the rules; a reader judges the rest of a text.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: What to write instead, by rule.
ADVICE = {
    "opening": "begin with an imperative verb (function) or a noun phrase (all else)",
    "fragment": "describe it with a noun phrase",
    "phrase": "use the standard words of the field",
    "name": "name a value for what it holds, a limit MAX_ or MIN_",
}
SUFFIXES = frozenset({".py", ".md", ".html"})

# A docstring begins with an imperative verb (functions) or a noun phrase (everything else).
_OPENING = re.compile(
    r"(What|Who|Whom|Whose|Whether|How|Which|Where|Of|Why|When|That|Tells?|Says?)\b"
)
# The description of an argument or attribute is a noun phrase.
_FRAGMENT = re.compile(
    r"^\s{4,}\w+: (Of|What|Who|Whether|How|Which|Where|That|By which|For which) ", re.MULTILINE
)
_PHRASE = re.compile(
    "|".join(
        [
            r"\bnobody\b",
            r"\bsomebody\b",
            r"\bwhoever\b",
            r"\bwhomever\b",
            r"\banew\b",
            r"\bso often\b",
            r"\bso many\b",
            r"\bwhat it came to\b",
            r"\bcame to no end\b",
            r"\bthere is no such\b",
            r"\bheard of\b",
            r"\bis asked for\b",
            r"\bis to be (?!able)",
            r"\bare to be\b",
            r"\bSee the contract\b",
            r"\bof ours\b",
            r"\bour own\b",
            r"(?<!there )\b(?:is|are|was|were) no "
            r"(?!longer\b|more than|less than|later|earlier|fewer|such)",
            r"\bby itself no\b",
            r"\bthe like\b",
            r"\bmeanwhile\b",
            r"\bbeside it\b",
            r"\bhas not got\b",
            r"\bis gone\b",
        ]
    ),
    re.IGNORECASE,
)
_LIMIT_NAME = re.compile(r"^_?(MOST|LEAST)_|_(MOST|LEAST)_")
_NAMES = frozenset(
    {
        "seat", "errand", "draft", "board", "roster", "teller", "journal",
        "told", "wanted", "found", "taking", "said",
    }
)  # fmt: skip
# In documents, code blocks, inline code and quotations may hold any words.
_QUOTED = re.compile(r"```.*?```|`[^`\n]*`|^> [^\n]*$", re.DOTALL | re.MULTILINE)
_TEXT_TOKENS = frozenset(
    {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
)


class Finding(NamedTuple):
    """One place in a file that breaks a rule."""

    line: int
    rule: str
    text: str


def check(path: Path) -> list[Finding]:
    """Check a file of Python, Markdown or HTML."""
    text = path.read_text()
    return list(check_python(text) if path.suffix == ".py" else check_document(text))


def check_python(source: str) -> Iterator[Finding]:
    """Check docstrings, comments, strings and identifiers."""
    for line, docstring in _docstrings(ast.parse(source)):
        if _OPENING.match(docstring.strip()):
            yield Finding(line, "opening", docstring.strip().splitlines()[0])
        for match in _FRAGMENT.finditer(docstring):
            yield Finding(line, "fragment", match[0].strip())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXT_TOKENS:
            for match in _PHRASE.finditer(re.sub(r"\s+", " ", token.string)):
                yield Finding(token.start[0], "phrase", match[0])
        elif token.type == tokenize.NAME and _is_banned(token.string):
            yield Finding(token.start[0], "name", token.string)


def check_document(text: str) -> Iterator[Finding]:
    """Check the prose of a document or template."""
    prose = _QUOTED.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in _PHRASE.finditer(prose):
        yield Finding(prose[: match.start()].count("\n") + 1, "phrase", match[0])


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield node.body[0].lineno, docstring


def _is_banned(name: str) -> bool:
    return name in _NAMES or bool(_LIMIT_NAME.search(name))
