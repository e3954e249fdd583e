"""The networks of ``catalogue.yaml``, which is grouped by where their files come from."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.corpus.entries import Entry, Exported, Light, Packaged, Quantised, Tensor, Zoo

_ARCHITECTURES = "benchmarks.corpus.architectures"
# Tested in seconds, without a download.
_QUICK = ("zoo-mlp", "espcn")


def _entries() -> Iterator[Entry]:
    listed = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    for package, files in listed["packaged"].items():
        for name, each in files.items():
            shapes = {key: tuple(shape) for key, shape in each.get("shapes", {}).items()}
            yield Entry(name, each["kind"], Packaged(package, each["member"]), shapes)
    for name in listed["light"]:
        yield Entry(f"light-{name}", "classification", Light(name))
    for name, kind in listed["zoo"].items():
        yield _entry(f"zoo-{name}", kind, Zoo(name))
    for package, data in (("torchvision", "image"), ("timm", "x")):
        for name, arguments in listed[package].items():
            kind, size = arguments.pop("kind", "classification"), arguments.pop("size", 224)
            inputs = {data: arguments.pop("shape", (1, 3, size, size))}
            named = {"name": name, **arguments}
            source = _exported(f"hub:{package}_model", inputs, named, package)
            yield Entry(f"{package}-{name}", kind, source)
    for architecture, encoder in listed["segmentation"]:
        arguments = {"architecture": architecture, "encoder": encoder}
        inputs, package = {"x": (1, 3, 256, 256)}, "segmentation-models-pytorch"
        source = _exported("hub:segmentation_model", inputs, arguments, package)
        yield Entry(f"smp-{architecture.lower()}-{encoder}", "segmentation", source)
    for name, each in listed["transformers"].items():
        model, _, config = each["model"].partition("/")
        arguments = {"model": model, "config": f"{config}Config", **each.get("config", {})}
        source = _exported("hub:transformer", each["inputs"], arguments, "transformers")
        yield Entry(name, each["kind"], source)
    for name, each in listed["exported"].items():
        arguments, package = each.get("arguments", {}), each.get("package", "")
        source = _exported(each["factory"], each["inputs"], arguments, package)
        yield _entry(name, each["kind"], source)
    for name, method in listed["quantised"]:
        yield Entry(f"{name}-{method}", "quantised", Quantised(name, method))


def _entry(name: str, kind: Any, source: Zoo | Exported) -> Entry:
    return Entry(name, kind, source, is_quick=name in _QUICK)


def _exported(
    factory: str, inputs: Mapping[str, Any], arguments: Mapping[str, Any], package: str
) -> Exported:
    """Return a source; an input is a shape, or a shape and the limit of its whole numbers."""
    tensors = {
        name: Tensor(tuple(each["shape"]), each["below"])
        if isinstance(each, dict)
        else Tensor(tuple(each))
        for name, each in inputs.items()
    }
    return Exported(f"{_ARCHITECTURES}.{factory}", tensors, arguments, package)


#: All networks, in the order of the page.
ENTRIES: tuple[Entry, ...] = tuple(_entries())


def entry_named(name: str) -> Entry:
    """Return an entry by name.

    Raises:
        KeyError: If there is none.
    """
    return {entry.name: entry for entry in ENTRIES}[name]
