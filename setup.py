"""Package metadata beyond pyproject.toml: links of README.md for an index, and the platform."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

_HOST = "https://github.com/subgraph-tuner/subgraph-tuner"
_IMAGE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)")
_LINK = re.compile(r"(?<!\!)(\[[^\]]*\]\()(?!https?:|#)")


class LinuxWheel(bdist_wheel):
    """Wheel that pip refuses elsewhere: TVM has wheels for Windows, the tuner needs Linux."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag of Linux with the C library that TVM's wheels need."""
        return "py3", "none", "manylinux_2_28_aarch64.manylinux_2_28_x86_64"


text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
text = _IMAGE.sub(rf"\1{_HOST}/raw/main/", text)
setup(
    cmdclass={"bdist_wheel": LinuxWheel},
    long_description=_LINK.sub(rf"\1{_HOST}/blob/main/", text),
    long_description_content_type="text/markdown",
)
