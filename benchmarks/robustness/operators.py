"""Sweep of the node tests of the onnx package through loading, lowering and an untuned build.

Prints one JSON line for each case that fails, and a summary with the number of cases by outcome
and the operators that fail.

    python -m benchmarks.robustness.operators --match lstm gru --out build/operators.json
"""

import argparse
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from benchmarks.workers import open_worker
from tuner.errors import TunerError
from tuner.settings import Settings
from tuner.workers.pool import CallTimeout, Pool

_CASE_SECS = 60.0
# Their outputs are random, strings, sequences, or depend on a training step.
_LEFT_OUT = ("sequence", "string", "optional", "bernoulli", "random", "momentum", "adagrad",
             "adam_", "gradient", "tfidf", "image_decoder", "training", "ai_onnx_ml", "multinomial",
             "label_encoder", "_map_", "loss_", "sce_", "nllloss")  # fmt: skip


def main() -> None:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--match", nargs="+", default=[""], help="parts of the names of cases")
    parser.add_argument("--out", type=Path, default=Path("build/operators.json"))
    parser.add_argument("--expanded", action="store_true", help="also cases of function bodies")
    arguments = parser.parse_args()
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = Settings(f"sqlite:///{folder}/tuner.db", folder, "tuner.engines.relax.worker", 1)
        with open_worker(settings) as worker:
            for case in _cases(arguments.match, expanded=arguments.expanded):
                outcome = _outcome(worker, case, folder / "case.npz")
                outcomes[case.name] = outcome
                if outcome != "ok":
                    print(json.dumps({"case": case.name, "outcome": outcome}), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(outcomes, indent=1, sort_keys=True))
    kinds = Counter(outcome.partition(":")[0] for outcome in outcomes.values())
    print(json.dumps({"benchmark": "operators", "cases": len(outcomes), **kinds}))


def _cases(parts: list[str], *, expanded: bool) -> Iterator[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases("")
    for case in sorted(cases, key=lambda case: str(case.name)):
        left_out = any(part in case.name for part in _LEFT_OUT)
        left_out |= not expanded and "expanded" in case.name
        if not left_out and any(part in case.name for part in parts):
            yield case


def _outcome(worker: Pool, case: Any, path: Path) -> str:
    inputs, outputs = case.data_sets[0]
    try:
        names = [info.name for info in case.model.graph.input]
        given = dict(zip(names, map(_array, inputs), strict=True))
        stored: dict[str, Any] = {
            "model": case.model.SerializeToString(),
            "inputs": given,
            "outputs": list(map(_array, outputs)),
        }
        np.savez(path, **{key: _boxed(value) for key, value in stored.items()})
        return str(
            worker.call(
                "benchmarks.robustness.operator_case", "check", str(path), timeout_secs=_CASE_SECS
            )
        )
    except CallTimeout:
        return f"failed: longer than {_CASE_SECS:g} s"
    except TunerError as error:
        return f"crashed: {error}"
    except (TypeError, ValueError) as error:
        return f"left out: {error}"


def _boxed(value: Any) -> Any:
    box = np.empty((), dtype=object)
    box[()] = value
    return box


def _array(value: Any) -> Any:
    if hasattr(value, "dims"):
        return numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError("not a tensor")
    return np.asarray(value)


if __name__ == "__main__":
    main()
