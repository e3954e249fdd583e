"""Pages that stand alone: no script, no font and no image from elsewhere."""

from collections.abc import Callable
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, Template


def template(package: str, name: str, **filters: Callable[..., Any]) -> Template:
    """Load a template of a package, which extends ``page.html`` of this one."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader(__package__, ".")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)
