"""Templates agree with the workloads of small networks of many families, in the interpreter.

``benchmarks/gpu/models/small_networks.py`` writes the file of workloads.
"""

import itertools
import lzma
import re
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.models import small_networks
from tests.gpu_compilers import needs_triton
from tests.tuner.engines.relax.triton.conftest import ALL_KINDS, Verify
from tuner.engines.relax.ir import workloads
from tuner.engines.relax.triton import variants
from tuner.engines.relax.triton.programs import Program

pytestmark = needs_triton

_FILE = Path(__file__).with_name("small_networks.xz")
_NETWORKS: dict[str, list[bytes]] = {}
for _line in lzma.decompress(_FILE.read_bytes()).split(b"\n"):
    _name, _, _ir = _line.partition(b" ")
    _NETWORKS.setdefault(_name.decode(), []).append(zlib.compress(_ir))


@pytest.mark.in_ci
@pytest.mark.slow("20 s for all networks")
@pytest.mark.parametrize("network", _NETWORKS)
def test_blocks_agree(network: str, verify: Verify) -> None:
    """Each template that fits a workload of a new structure computes it, or some blocks of it."""
    for ir in _new_structures()[network]:
        for program in _programs(ir):
            # Of shared sums, all parts are needed.
            n_blocks = 4 if len(program.kernels) == 1 and not program.workspace else 0
            assert verify(ir, program, n_blocks=n_blocks) == "", program.kernels[0].name


@pytest.mark.slow("interprets the same layers in all blocks")
@pytest.mark.parametrize("network", _NETWORKS)
def test_kernels_agree(network: str, verify: Verify) -> None:
    """Each template that fits a workload computes it, with shared sums and without."""
    for ir in _NETWORKS[network]:
        for program in _programs(ir):
            assert verify(ir, program, ALL_KINDS) == "", program.kernels[0].name


@cache
def _new_structures() -> dict[str, list[bytes]]:
    """Return the workloads of each network that differ from those before by more than numbers."""
    structures: dict[str, bytes] = {}
    for ir in itertools.chain.from_iterable(_NETWORKS.values()):
        text = workloads.load(ir)["main"].script()
        structures.setdefault(re.sub(r"(?<![a-z])\d+", "0", text), ir)
    first = set(structures.values())
    return {name: [ir for ir in irs if ir in first] for name, irs in _NETWORKS.items()}


def _programs(ir: bytes) -> Iterator[Program]:
    """Print the first choices of each template that fits."""
    function = workloads.load(ir)["main"]
    pairs = [(template, template.find(function)) for template in variants.TEMPLATES]
    matched = {template: match for template, match in pairs if match is not None}
    assert matched
    if len(matched) > 1:  # windows of many numbers are interpreted slowly
        matched.pop(variants.WINDOWS, None)
    for template, match in matched.items():
        for choice in _choices(template, match):
            yield template.print(match, choice)


def _choices(template: variants.Template, match: Any) -> list[Any]:
    """Return the first choice, and the first that shares sums; of windows, that of few blocks."""
    ranked = template.ranked(match, 90)
    if template is variants.WINDOWS:
        return [max(ranked, key=lambda each: each.rows * each.columns)]
    shared = [each for each in ranked if getattr(each, "n_splits", 1) > 1]
    return list(dict.fromkeys([ranked[0], *shared[:1]]))


@pytest.mark.in_ci
@pytest.mark.slow("5 s of lowering")
def test_the_pipeline_extracts_these_workloads() -> None:
    """The file was written by this pipeline; write it again where this fails."""
    extracted = small_networks.extract("decoder")

    names = {workloads.name_of(ir) for of_one in _NETWORKS.values() for ir in of_one}
    assert extracted
    assert {workloads.name_of(ir) for ir in extracted} <= names
