"""Mutated ONNX files through the loader, in a process with the limits of the service."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.robustness.mutated_models import run, write_bases
from tuner.service.loading.limited_loading import ProcessLimits

_N_MUTANTS = 30
_LIMITS = ProcessLimits(4 << 30, 120.0)


@pytest.mark.in_ci
@pytest.mark.slow("10 s: loads hundreds of models")
@pytest.mark.tvm
def test_mutants_are_loaded_or_refused_with_a_code(tmp_path: Path) -> None:
    """Each gets an error of the documented ones, or is split into tasks."""
    write_bases(tmp_path / "bases", ["layers"])

    outcomes = list(run(tmp_path, range(_N_MUTANTS), _LIMITS, ["layers"]))

    assert [outcome for outcome in outcomes if outcome.broken] == []
    assert all(outcome.peak_bytes for outcome in outcomes if outcome.code == "loaded")
    codes = Counter(outcome.code for outcome in outcomes)
    assert codes.total() == _N_MUTANTS
    # Most mutants are damaged, and not all: otherwise nothing beyond the first bytes was parsed.
    assert 3 <= codes["loaded"] <= _N_MUTANTS // 2, codes
    assert len(codes) >= 5, codes
