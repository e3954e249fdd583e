"""Arguments and options that several commands share, and the options that errors are about."""

from pathlib import Path
from typing import Annotated, Any

import typer

# Options whose name differs from that of the field they set.
_OPTIONS = {"stop_below_ms": "--stop-below", "model": "MODEL", "source": "--model"}

# Groups of options in help pages.
MODEL_PANEL = "Model"
MEASURING_PANEL = "Measuring"
PLACEMENT_PANEL = "Where it runs"
OUTPUT_PANEL = "Output"


def option(metavar: str, text: str, *names: str, panel: str | None = None, **limits: Any) -> Any:
    """Describe an option that takes a value, by default named after its parameter."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **limits)


def flag(name: str, text: str, *short: str, panel: str | None = None) -> Any:
    """Describe an option without a value."""
    return typer.Option(name, *short, help=text, rich_help_panel=panel)


def argument(metavar: str, text: str, **limits: Any) -> Any:
    """Describe an argument."""
    return typer.Argument(metavar=metavar, help=text, **limits)


MODEL = argument(
    "MODEL", "A .onnx or .pt2 file, or zoo:NAME such as 'zoo:resnet-18?batch=1&layout=NHWC'."
)
Model = Annotated[str, MODEL]
TargetOption = Annotated[
    str,
    option(
        "TARGET",
        "Target: llvm (this CPU), 'llvm -mcpu=NAME', llvm+onednn (and let oneDNN compete "
        "with the tuned kernels), cuda (this GPU), cuda:sm_90, a TVM tag, or JSON.",
        "--target",
        "-t",
        panel=MODEL_PANEL,
    ),
]
InputOption = Annotated[
    list[str],
    option(
        "NAME=1,3,224,224",
        "Shape of an input with dynamic dimensions, or the value of an input of one "
        "element (sr=16000, use_cache_branch=true), which becomes a constant; repeat for "
        "each input. Repeat an input name to add another shape configuration.",
        "--input",
        "-i",
        panel=MODEL_PANEL,
    ),
]
BucketOption = Annotated[
    list[str],
    option(
        "DIM=1,4,16",
        "Sizes of a dynamic dimension, or its name alone for a choice of sizes; repeat "
        "for each dimension. auto chooses for all. SIZE:WEIGHT says how often a size is "
        "expected.",
        "--bucket",
        "-b",
        panel=MODEL_PANEL,
    ),
]
MaskOption = Annotated[
    list[str],
    option(
        "INPUT[=VALUE]",
        "Input that marks padding, by 0 or VALUE; by default those named after a mask.",
        "--mask",
        panel=MODEL_PANEL,
    ),
]
RandomWeightsOption = Annotated[
    int | None,
    option(
        "SEED",
        "Replace the weights by random ones with this seed, for models that come without.",
        panel=MODEL_PANEL,
    ),
]
DatabaseOption = Annotated[
    str | None,
    option(
        "URL",
        "Database of the records [default: an SQLite file in the data directory]. Also "
        "TUNER_DATABASE.",
        panel=PLACEMENT_PANEL,
    ),
]
DataDirOption = Annotated[
    Path | None,
    option(
        "DIR",
        "Directory of models, compiled code and logs. Also TUNER_DATA_DIR.",
        panel=PLACEMENT_PANEL,
    ),
]
RpcOption = Annotated[
    str | None,
    option(
        "HOST:PORT/KEY",
        "Measure on the devices that a TVM RPC tracker has under a key; separate several "
        "by commas. Also TUNER_RPC.",
        panel=PLACEMENT_PANEL,
    ),
]
EngineOption = Annotated[
    str | None,
    option(
        "NAME",
        "Compiler backend: relax (TVM's MetaSchedule) or relay (Relay and Ansor; install "
        "it with `tuner engine install relay`) [default: relax]. Also TUNER_ENGINE.",
        panel=PLACEMENT_PANEL,
    ),
]
LibraryArgument = Annotated[Path, argument("LIBRARY", "Folder of the library.")]
LibraryModelOption = Annotated[
    str | None,
    option(
        "MODEL",
        "File of the model that the library was built from, which the other runtime runs; "
        "a zoo: network needs none.",
        panel=MODEL_PANEL,
    ),
]
ArraysOption = Annotated[
    Path | None,
    option(
        "FILE.npz",
        "Run on the arrays of this file, one per input name, instead of drawn ones.",
        "--inputs",
        panel=MODEL_PANEL,
    ),
]
ProgramShapesOption = Annotated[
    list[str],
    option(
        "NAME=1,3,224,224",
        "Shape of an input, to choose among the programs of a library; by default those "
        "of the first.",
        "--input",
        "-i",
        panel=MODEL_PANEL,
    ),
]
InputSeedOption = Annotated[
    int, option("SEED", "Seed of the inputs that are drawn.", panel=MEASURING_PANEL)
]
JsonOption = Annotated[
    bool, flag("--json", "Print exactly one JSON object on stdout.", panel=OUTPUT_PANEL)
]


def share(option: str, text: str) -> float:
    """Return the share that an option names, such as ``3%``.

    Raises:
        RequestError: If it is not from 0% to 100%.
    """
    from tuner.errors import RequestError

    try:
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise RequestError(f"{option} must be a share from 0% to 100%, got {text!r}")
    return number


def option_of(field: str) -> str:
    """Return the option or argument for a field of a request, such as ``--trials-per-round``."""
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def message_of(error: Exception) -> str:
    """Return the text of an error with the field that it is about named as an option."""
    from tuner.errors import RequestError

    if isinstance(error, RequestError) and error.field is not None:
        return str(error).replace(error.field, option_of(error.field), 1)
    return str(error)
