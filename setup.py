"""Package metadata beyond pyproject.toml: links of README.md that work on an index."""

import re
from pathlib import Path

from setuptools import setup

_HOST = "https://github.com/subgraph-tuner/subgraph-tuner"
_IMAGE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)")
_LINK = re.compile(r"(?<!\!)(\[[^\]]*\]\()(?!https?:|#)")

text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
text = _IMAGE.sub(rf"\1{_HOST}/raw/main/", text)
setup(
    long_description=_LINK.sub(rf"\1{_HOST}/blob/main/", text),
    long_description_content_type="text/markdown",
)
