"""Mutated ONNX files through the loader of the service, which must refuse or load each of them.

Each mutant is an operator, a layer or a network of which bytes, fields, shapes, attributes, edges,
opsets, types or weights were changed, see :mod:`~benchmarks.robustness.model_mutations`. It is
loaded and split into tasks as the worker of a service does that: in a process with limits on memory
and time, which here serves many mutants. A mutant counts as broken if its error has no code of
docs/errors.md, holds text of a compiler or a path, or if it takes more than its memory or time.
Those are kept in ``broken/`` of the folder. Prints one JSON line. A run that was interrupted
continues where it ended.

    python -m benchmarks.robustness.mutated_models --mutants 10000
"""

import argparse
import json
import random
import re
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import onnx
import psutil

from benchmarks.models import LIGHT, light_model
from benchmarks.robustness.model_mutations import mutate
from tuner.context import Context, open_context
from tuner.errors import ModelCode, TunerError
from tuner.jobs.models.model_loading import LoadLimits
from tuner.jobs.preparation import prepare
from tuner.jobs.requests import ModelRequest
from tuner.networks.zoo import catalogue
from tuner.service.loading.limited_loading import ProcessLimits, user_facing_errors
from tuner.workers import worker_process
from tuner.workers.confinement.sandbox_paths import Access
from tuner.workers.factory import fresh_worker
from tuner.workers.pool import Pool

FAMILIES = ("operators", "layers", "light", "zoo")


_ZOO = ("mlp", "squeezenet_v1.1?image=64", "mlp?batch=4")


_MAX_BYTES = 6_000_000


ENGINE = "tuner.engines.relax.worker"
_WEIGHTS = {"operators": 46, "layers": 46, "light": 2, "zoo": 6}
_PER_PROCESS = 250
_GRACE_SECS = 10.0
# Code and data of the libraries that are mapped from files, which the limit leaves out.
_MAPPED_BYTES = 700 << 20
_MAX_CHARS = 2_500
_CODE = re.compile(r"\[([a-z-]+)\]$")
_INTERNAL = re.compile(
    r"Traceback|File \"|\.(cc|cpp|h|py):\d|site-packages|ICHECK|Check failed|(tvm|onnx)::"
    r"|0x[0-9a-f]{8}"
)
_PEAK = re.compile(r"VmHWM:\s+(\d+)")
_CODES = frozenset(get_args(ModelCode)) - {"bad-model"}


@dataclass(frozen=True)
class Outcome:
    """The end of one mutant.

    Attributes:
        base: Family and name of the model that was mutated.
        code: Code of its error; "loaded" without one, empty if the error has none.
        text: Text of the error.
        secs: Seconds that it took.
        peak_bytes: Largest memory of the process so far.
        broken: Reasons why it counts as broken.
    """

    number: int
    base: str
    code: str
    text: str
    secs: float
    peak_bytes: int
    broken: tuple[str, ...] = ()


def main() -> None:
    """Run the mutants of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--folder", type=Path, default=Path("build/mutated-models"))
    parser.add_argument("--memory-mb", type=int, default=4096, help="memory of a load process")
    parser.add_argument("--load-timeout", type=float, default=60.0, help="seconds of each step")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    write_bases(folder / "bases", arguments.families)
    limits = ProcessLimits(arguments.memory_mb << 20, arguments.load_timeout)
    path = folder / f"outcomes-{arguments.seed}.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    read = [json.loads(line) for line in lines]
    done = {item["number"]: Outcome(**{**item, "broken": tuple(item["broken"])}) for item in read}
    started = time.monotonic()
    todo = [number for number in range(arguments.mutants) if number not in done]
    with (folder / f"outcomes-{arguments.seed}.jsonl").open("a") as log:
        for outcome in run(folder, todo, limits, arguments.families, arguments.seed):
            done[outcome.number] = outcome
            log.write(json.dumps(asdict(outcome)) + "\n")
            log.flush()
            n_done = len(done)
            if outcome.broken:
                reasons = ", ".join(outcome.broken)
                print(
                    f"{outcome.number} {outcome.base}: {reasons}: {outcome.text[:300]}",
                    file=sys.stderr,
                )
            elif n_done % 100 == 0:
                print(f"{n_done} of {arguments.mutants}", file=sys.stderr)
    outcomes = [done[number] for number in sorted(done) if number < arguments.mutants]
    secs = time.monotonic() - started
    print(json.dumps(_report(outcomes, len(todo), secs)), flush=True)


def run(
    folder: Path,
    numbers: Sequence[int],
    limits: ProcessLimits,
    families: Sequence[str] = FAMILIES,
    seed: int = 0,
) -> Iterator[Outcome]:
    """Load mutants, and yield the end of each.

    Args:
        folder: Folder with the models to mutate in ``bases/``.
        families: Families to mutate.
        seed: Seed of all mutations.
    """
    bases = {family: sorted((folder / "bases" / family).glob("*.onnx")) for family in families}
    for start in range(0, len(numbers), _PER_PROCESS):
        # Nothing but mutants is in it, and the cleaned models of 10,000 take gigabytes.
        shutil.rmtree(folder / "data", ignore_errors=True)
        with _loader(folder, limits) as (context, worker):
            for number in numbers[start : start + _PER_PROCESS]:
                base, content = make_mutant(bases, seed, number)
                outcome = load(context, worker, limits, (number, base, content))
                if outcome.broken:
                    broken = folder / "broken"
                    broken.mkdir(exist_ok=True)
                    (broken / f"{outcome.number}.onnx").write_bytes(content)
                    (broken / f"{outcome.number}.json").write_text(
                        json.dumps(asdict(outcome), indent=1)
                    )
                yield outcome


def make_mutant(bases: dict[str, list[Path]], seed: int, number: int) -> tuple[str, bytes]:
    """Return the name of the mutated model, and the mutant."""
    draw = random.Random(f"{seed}-{number}")
    family = draw.choices(list(bases), [_WEIGHTS[family] for family in bases])[0]
    base = draw.choice(bases[family])
    return f"{family}/{base.stem}", mutate(draw, base.read_bytes())


def load(
    context: Context, worker: Pool, limits: ProcessLimits, mutant: tuple[int, str, bytes]
) -> Outcome:
    """Load one mutant and split it into tasks, and judge its end."""
    number, base, content = mutant
    path = context.settings.data_dir / f"{number}.onnx"
    path.write_bytes(content)
    request = ModelRequest(str(path), name=f"mutant {number}")
    started, text, broken = time.monotonic(), "", []
    try:
        with user_facing_errors(request, limits):
            load_limits = LoadLimits(limits.secs, alone=True)
            prepare(request, context, worker, must_run=True, limits=load_limits)
        code = "loaded"
    except TunerError as error:
        text = str(error)
        code = (_CODE.findall(text) or [""])[0]
        broken = [*judge(text, str(context.settings.data_dir))]
    except Exception as error:
        code, text = "", f"{type(error).__name__}: {error}"[:_MAX_CHARS]
        broken = ["internal error"]
    secs = time.monotonic() - started
    peak = _peak_bytes()
    if secs > 3 * limits.secs + _GRACE_SECS:
        broken.append("too slow")
    if peak > limits.max_bytes + _MAPPED_BYTES:
        broken.append("too large")
    path.unlink()
    return Outcome(number, base, code, text, round(secs, 2), peak, tuple(broken))


def judge(text: str, folder: str) -> Iterator[str]:
    """Yield what is wrong with the error of a mutant.

    Args:
        text: The error as the owner of the job sees it.
        folder: A path that it must not hold.
    """
    if not set(_CODE.findall(text)) & _CODES:
        yield "without a code"
    if _INTERNAL.search(text) or folder in text:
        yield "internal text"
    if not text.isprintable():
        yield "not printable"
    if len(text) > _MAX_CHARS:
        yield "too long"


@contextmanager
def _loader(folder: Path, limits: ProcessLimits) -> Iterator[tuple[Context, Pool]]:
    data = folder.absolute() / "data"
    access = Access(files=(folder.absolute(),))
    with (
        open_context(f"sqlite:///{data / 'tuner.db'}", data, engine=ENGINE) as context,
        fresh_worker(context.settings, access=access, max_bytes=limits.max_bytes) as worker,
    ):
        yield context, worker


def _peak_bytes() -> int:
    """Return the largest memory that the load process had so far; 0 if it has just ended."""
    for child in psutil.Process().children(recursive=True):
        with suppress(OSError, psutil.Error):
            peak = _PEAK.search(Path(f"/proc/{child.pid}/status").read_text())
            if peak and child.name() == worker_process.NAME:
                return int(peak[1]) << 10
    return 0


def _report(outcomes: list[Outcome], n_loaded_now: int, secs: float) -> dict[str, Any]:
    broken = [outcome for outcome in outcomes if outcome.broken]
    return {
        "benchmark": "mutated_models",
        "mutants": len(outcomes),
        "ran_now": n_loaded_now,
        "secs": round(secs, 1),
        "codes": dict(Counter(outcome.code for outcome in outcomes).most_common()),
        "slowest_secs": max((outcome.secs for outcome in outcomes), default=0.0),
        "peak_mib": max((outcome.peak_bytes for outcome in outcomes), default=0) >> 20,
        "broken": len(broken),
        "broken_numbers": [outcome.number for outcome in broken][:50],
        "reached": not broken,
    }


def write_bases(folder: Path, families: Sequence[str] = FAMILIES) -> None:
    """Write the models of each family into a folder of its own; an existing folder is kept."""
    for family in families:
        target = folder / family
        if target.is_dir():
            continue
        unfinished = folder / f".{family}"
        unfinished.mkdir(parents=True, exist_ok=True)
        for name, content in _MAKERS[family]():
            if len(content) <= _MAX_BYTES:
                (unfinished / f"{name}.onnx").write_bytes(content)
        unfinished.rename(target)


def _operators() -> Iterator[tuple[str, bytes]]:
    """Yield the node tests of the onnx package: every operator, many of them in several forms."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases("")
    for case in cases:
        yield str(case.name), case.model.SerializeToString()


def _layers() -> Iterator[tuple[str, bytes]]:
    """Yield the layers that the onnx package has as exported by torch, with their weights."""
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        for path in sorted((data / kind).glob("*/model.onnx")):
            yield path.parent.name, path.read_bytes()


def _light() -> Iterator[tuple[str, bytes]]:
    for name in LIGHT:
        yield name, Path(light_model(name)).read_bytes()


def _zoo() -> Iterator[tuple[str, bytes]]:
    for number, query in enumerate(_ZOO):
        yield f"{number}-{query.partition('?')[0]}", catalogue.build(query).SerializeToString()


_MAKERS = {"operators": _operators, "layers": _layers, "light": _light, "zoo": _zoo}


if __name__ == "__main__":
    main()
