"""The toy engine, with names and another form of IR that an older version gave its workloads."""

import hashlib
from dataclasses import replace

from tests.engines import toy
from tests.engines.toy import describe_target, profile
from tuner.engines.base import Extraction, ModelFile

__all__ = ["describe_target", "profile"]

NAME = "tests.engines.former"
_OLD = b"old "


def extract(model: ModelFile, target: str) -> Extraction:
    """Extract, with former names."""
    extraction = toy.extract(model, target)
    tasks = [replace(task, former_name=former_name(task.ir)) for task in extraction.tasks]
    return replace(extraction, tasks=tuple(tasks))


def canonical(irs: list[bytes]) -> list[bytes]:
    """Return the new form of IR."""
    return [ir.removeprefix(_OLD) for ir in irs]


def former_name(ir: bytes) -> str:
    """Return a name of 16 digits."""
    return hashlib.sha256(ir).hexdigest()[:16]


def old_form(ir: bytes) -> bytes:
    """Return IR as an older version wrote it."""
    return _OLD + ir
