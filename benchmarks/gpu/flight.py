"""Compare libraries with torch in a few minutes on a machine with a GPU, torch, and no network.

``make`` builds everything here, on CPUs; ``run`` measures there, with nothing installed;
``report`` writes the page of the results here. See docs/results/README.md.

    python -m benchmarks.gpu.flight make --out build/flight
    python3 build/flight run --out results
    python -m benchmarks.gpu.flight report results
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.gpu import report as reporting
from benchmarks.gpu.running import AUTOTUNED, HELD_OUT, NETWORKS, RESULTS, STEPS, Runner

ALL = (*NETWORKS, *HELD_OUT)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    _add_make(commands.add_parser("make", help="write the folder of a flight, on CPUs"))
    run = commands.add_parser("run", help="run the steps on the machine with the GPU")
    run.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    run.add_argument("--flight", type=Path, default=Path(__file__).parents[2], help="made folder")
    run.add_argument("--seconds", type=float, default=440, help="limit of all steps")
    run.add_argument("--compile-seconds", type=float, default=170, help="limit of torch.compile")
    run.add_argument("--pack-seconds", type=float, default=180, help="limit of each pack")
    run.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    run.add_argument("--autotune", nargs="*", choices=ALL, default=AUTOTUNED, help="networks")
    run.add_argument("--ncu-seconds", type=float, default=45, help="limit of ncu")
    run.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses")
    run.set_defaults(function=_run)
    report = commands.add_parser("report", help="write the page of the results")
    report.add_argument("results", type=Path, help="folder of the results")
    report.add_argument("--into", type=Path, default=Path("docs/results"))
    report.set_defaults(function=_report)
    arguments = parser.parse_args()
    arguments.function(arguments)


def _add_make(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("build/flight"))
    parser.add_argument("--networks", nargs="+", choices=ALL, default=NETWORKS)
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--python", default="3.12", help="version on the machine with the GPU")
    parser.add_argument("--data-dir", help="records of tuned libraries; without it untuned ones")
    parser.add_argument("--pack", type=Path, action="append", default=[], help="file; repeat")
    parser.add_argument("--cache", type=Path, help="keeps compiled objects for the next flight")
    parser.add_argument("--agree", type=Path, help="libraries of the corpus, see corpus_libraries")
    parser.add_argument("--tiny", action="store_true", help="smaller networks, to rehearse")
    parser.set_defaults(function=_make)


def _make(arguments: argparse.Namespace) -> None:
    from benchmarks.gpu.making import Plan, make

    plan = Plan(
        arguments.networks, arguments.target, arguments.python,
        ["--data-dir", arguments.data_dir] if arguments.data_dir else [],
        arguments.pack, arguments.tiny, arguments.cache, arguments.agree,
    )  # fmt: skip
    sizes = make(plan, arguments.out)
    n_mib = sum(sizes.values()) / (1 << 20)
    print(json.dumps({"benchmark": "flight", "folder": str(arguments.out), "mib": n_mib}))


def _run(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="flight-") as scratch:
        runner = Runner(
            arguments.flight.resolve(), arguments.out.resolve(), Path(scratch),
            arguments.device, arguments.seconds, arguments.steps, arguments.autotune,
        )  # fmt: skip
        runner.fly(arguments.compile_seconds, arguments.pack_seconds, arguments.ncu_seconds)
    (arguments.out / "report.md").write_text(reporting.as_markdown(runner.results))
    print(reporting.as_summary(runner.results))


def _report(arguments: argparse.Namespace) -> None:
    print(reporting.write(arguments.results / RESULTS, arguments.into))


if __name__ == "__main__":
    main()
