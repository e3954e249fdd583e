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
    r"\s*(What|Who|Whom|Whose|Whether|How|Which|Where|Of|Why|When|That|Tells?|Says?)\b"
)
# The description of an argument or attribute is a noun phrase.
_FRAGMENT = re.compile(
    r"^\s{4,}\w+: (Of|What|Who|Whether|How|Which|Where|That|By which|For which) ", re.MULTILINE
)
# Of text in lower case with single spaces.
_PHRASE = re.compile(
    r"\b(?:(?:nobody|somebody|whoever|whomever|anew|so often|so many|what it came to"
    r"|came to no end|there is no such|heard of|is asked for|are to be|see the contract|of ours"
    r"|our own|by itself no|the like|meanwhile|beside it|has not got|is gone)\b"
    r"|is to be (?!able)|(?<!there )(?:is|are|was|were) no "
    r"(?!longer\b|more than|less than|later|earlier|fewer|such))"
)
_NAME = re.compile(
    r"\b(?:seat|errand|draft|board|roster|teller|journal|told|wanted|found|taking|said)\b"
    r"|(?:\b|_)(?:MOST|LEAST)_"
)
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
    # Few files have the words anywhere, and only those are parsed.
    if _FRAGMENT.search(source) or any(map(_OPENING.match, source.split('"""'))):
        for line, docstring in _docstrings(ast.parse(source)):
            if _OPENING.match(docstring):
                yield Finding(line, "opening", docstring.strip().splitlines()[0])
            for match in _FRAGMENT.finditer(docstring):
                yield Finding(line, "fragment", match[0].strip())
    if not _NAME.search(source) and not _PHRASE.search(_squeezed(source)):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _TEXT_TOKENS:
            for match in _PHRASE.finditer(_squeezed(token.string)):
                yield Finding(token.start[0], "phrase", match[0])
        elif token.type == tokenize.NAME and _NAME.search(token.string):
            yield Finding(token.start[0], "name", token.string)


def check_document(text: str) -> Iterator[Finding]:
    """Check the prose of a document or template."""
    prose = _QUOTED.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in _PHRASE.finditer(prose.lower()):
        yield Finding(prose[: match.start()].count("\n") + 1, "phrase", match[0])


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield node.body[0].lineno, docstring


def _squeezed(text: str) -> str:
    return " ".join(text.lower().split())
