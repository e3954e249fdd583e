"""Arguments and options that several commands share."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tuner.jobs.preparation import ModelRequest

MODEL = typer.Argument(
    help="A .onnx or .pt2 file, or zoo:NAME, such as 'zoo:resnet-18?batch=1&layout=NHWC'.",
    show_default=False,
)
Model = Annotated[str, MODEL]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        help="What to compile for: llvm (this CPU), cuda (this GPU), cuda:sm_90, a TVM tag, or "
        "JSON.",
    ),
]
InputOption = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=1,3,224,224",
        help="Shape of an input with dynamic dimensions, once per input; a name that comes again "
        "begins another set of shapes.",
        show_default=False,
    ),
]
RandomWeightsOption = Annotated[
    int | None,
    typer.Option(
        "--random-weights",
        metavar="SEED",
        help="Replace the weights by seeded random ones, for model files that ship without.",
        show_default=False,
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Where records live [default: a SQLite file under the data directory]. "
        "Also TUNER_DATABASE.",
        show_default=False,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Where models, compiled code and logs are kept. Also TUNER_DATA_DIR.",
        show_default=False,
    ),
]
RpcOption = Annotated[
    str | None,
    typer.Option(
        "--rpc",
        metavar="HOST:PORT/KEY",
        help="Measure on the devices that a TVM RPC tracker lends under a key; several separated "
        "by commas. Also TUNER_RPC.",
        show_default=False,
    ),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Search, build and measure on a Ray cluster; auto is that of this machine. Also "
        "TUNER_RAY_ADDRESS.",
        show_default=False,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What splits, searches and compiles: relax (TVM's MetaSchedule) or relay (Relay and "
        "Ansor, once `tuner engine install relay` was run) [default: relax]. Also TUNER_ENGINE.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")
]


def parse_inputs(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Read every ``--input`` of a command that takes one set of shapes.

    Raises:
        RequestError: If an input is named twice.
    """
    from tuner.errors import RequestError

    sets = parse_input_sets(texts)
    if len(sets) > 1:
        raise RequestError("an --input is given twice; here a model has one set of input shapes")
    return sets[0]


def parse_input_sets(texts: Sequence[str]) -> list[dict[str, tuple[int, ...]]]:
    """Read every ``--input``; a name that comes again begins the next set of shapes.

    Raises:
        RequestError: If the sets do not name the same inputs.
    """
    from tuner.errors import RequestError
    from tuner.networks.load import parse_input

    sets: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in map(parse_input, texts):
        if name in sets[-1]:
            sets.append({})
        sets[-1][name] = shape
    for each in sets:
        if set(each) != set(sets[0]):
            raise RequestError(
                f"{len(sets)} sets of --input, and one names {', '.join(each)}, the first "
                f"{', '.join(sets[0])}: every set is to name the same inputs"
            )
    return sets


def model_requests(
    models: Sequence[str], target: str, inputs: Sequence[str], random_weights: int | None
) -> "list[ModelRequest]":
    """Return every model with every set of input shapes.

    Raises:
        RequestError: If the sets do not name the same inputs.
    """
    from tuner.jobs.requests import model_requests as requests_of

    return requests_of(models, target, parse_input_sets(inputs), random_weights)


def parse_numbers(option: str, texts: Sequence[str], unit: float = 1.0) -> dict[str, float]:
    """Read every ``NAME=NUMBER`` of an option; a number alone is that of the only network.

    Raises:
        RequestError: If one is no positive number, or a name is given twice.
    """
    from tuner.errors import RequestError

    numbers: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            raise RequestError(f"{option} takes NAME=NUMBER or a number above 0, got {text!r}")
        if name in numbers:
            raise RequestError(f"{option} is given twice for {name or 'the network'}")
        numbers[name] = value * unit
    return numbers
