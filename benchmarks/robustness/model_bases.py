"""Models to mutate, all made without a network: operators, layers, whole networks."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from benchmarks.models import LIGHT, light_model
from tuner.networks.zoo import catalogue

FAMILIES = ("operators", "layers", "light", "zoo")
_ZOO = ("mlp", "squeezenet_v1.1?image=64", "mlp?batch=4")
_MAX_BYTES = 6_000_000


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
