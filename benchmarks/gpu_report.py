"""Report on the tuner's results on a GPU, in one command and under ten minutes.

The steps: doctor; two small networks, compared with torch; ResNet-18 as in the public tutorial;
ResNet-50 and a layer of BERT in float16, compared with torch. Every step has its share of the time,
and the report is written after each, so a failure or kill keeps all other results. Prints one JSON
line at the end; exits 1 if the GPU was lost, or no step had a result. See docs/results/README.md.

    python -m benchmarks.gpu_report --out build/gpu-report
    python -m benchmarks.gpu_report --target llvm --minutes 3 --out build/rehearsal
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._gpu_running import Report, Step
from benchmarks._gpu_sharing import plan

_STEPS = "benchmarks._gpu_steps"
_COMPARE = "benchmarks._gpu_compare.compare"
# The weights are roughly seconds of nine minutes.
STEPS = (
    Step("doctor", "Doctor", 20, f"{_STEPS}.doctor"),
    Step("mlp", "MLP, float32", 50, f"{_STEPS}.tune_small", ("mlp",)),
    Step(
        "small-conv",
        "ResNet-18 for images of 32 by 32, float32",
        70,
        f"{_STEPS}.tune_small",
        ("resnet-18?image=32",),
    ),
    Step(
        "resnet-18",
        "ResNet-18, float32, batch 1, NHWC",
        150,
        f"{_STEPS}.tune_by_rounds",
        ("resnet-18",),
    ),
    Step("resnet-50", "ResNet-50, float16, batch 1", 165, _COMPARE, ("resnet-50",)),
    Step(
        "bert-layer",
        "Encoder layer of BERT-base, float16, batch 1, 128 tokens",
        85,
        _COMPARE,
        ("bert-layer",),
    ),
)


def main() -> None:
    """Write the report of the command line."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cuda", help="cuda, or llvm to rehearse on this CPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all steps together")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-report"), help="its folder")
    parser.add_argument("--steps", nargs="+", choices=names, default=names)
    parser.add_argument("--tiny", action="store_true", help="smaller networks, to rehearse")
    parser.add_argument("--rehearse", action="store_true", help="only print the plan")
    arguments = parser.parse_args()
    chosen = [step for step in STEPS if step.name in arguments.steps]
    if arguments.rehearse:
        print(rehearsal(chosen, arguments.minutes * 60, arguments.target))
        return
    # On SIGTERM the interrupted step is written to the report, and workers end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report(arguments.target, arguments.minutes, arguments.out, arguments.tiny)
    report.run(chosen)
    states = {row["name"]: row["state"] for row in report.rows}
    summary = {"report": str(arguments.out / "report.md"), "lost": report.lost, "steps": states}
    print(json.dumps({"benchmark": "gpu_report", **summary}))
    has_result = [states[step.name] in ("done", "partial") for step in chosen]
    sys.exit(1 if report.lost or not any(has_result) else 0)


def rehearsal(steps: Sequence[Step], secs: float, target: str) -> str:
    """Return the plan as text."""
    shares = plan(secs, [step.weight for step in steps])
    lines = [
        f"{share:4.0f} s  {step.name:<11} {step.title}"
        for step, share in zip(steps, shares, strict=True)
    ]
    intro = f"On target {target}, {secs:.0f} s in all; unused time goes to later steps:"
    return "\n".join([intro, *lines])


if __name__ == "__main__":
    main()
