"""A driver for runners of packs whose kernels write what is expected of them."""

import io
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tuner.engines.relax import drivers
from tuner.engines.base import ReferenceRequest
from tuner.engines.linker import find_compiler
from tuner.engines.packed import WORKSPACE
from tuner.engines.relax import worker
from tuner.engines.relax.triton import programs
from tuner.engines.relax.triton.compilation import packed_programs
from tuner.engines.verification import input_sets, references
from tuner.engines.verification.input_sets import InputSet
from tuner.packs.runner.contents import Pack


def build_driver(folder: Path) -> Path:
    """Compile the driver and NVML into a folder for LD_LIBRARY_PATH."""
    for name, source in (
        ("libcuda.so.1", Path(__file__).with_name("driver.c")),
        ("libnvidia-ml.so.1", Path(drivers.__file__).with_name("nvml.c")),
    ):
        command = [find_compiler(), "-shared", "-fPIC", "-Wall", "-o", str(folder / name)]
        subprocess.run([*command, str(source)], check=True)
    return folder


def _index(pointer: str) -> int:
    return WORKSPACE if pointer == programs.WORKSPACE else int(pointer[1:])


@dataclass(frozen=True)
class Plan:
    """Work of the kernels of a pack.

    Attributes:
        path: File that ``TUNER_TEST_PLAN`` names.
    """

    path: Path

    def write(self, pack: Path, irs: Mapping[str, bytes], spec: str) -> None:
        """Have every kernel write the expected outputs of its workload.

        Args:
            pack: The pack.
            irs: Serialised subgraph by hash of the workload.
            spec: Canonical JSON of the target.
        """
        lines = []
        contents = Pack(pack)
        for workload in contents.workloads:
            kernels = [
                (kernel["name"], kernel["pointers"])
                for candidate in workload["candidates"]
                for kernel in candidate["kernels"]
            ]
            for text, _ in contents.sources(workload["workload"]).values():
                for kernel in packed_programs.load(text).kernels:
                    pointers = [name for name, _ in kernel.pointers]
                    kernels.append((kernel.name, [_index(name) for name in pointers]))
            for number, reference in enumerate(workload["references"]):
                input_set = InputSet.load(reference["input_set"])
                request = ReferenceRequest(
                    irs[workload["workload"]], spec, input_set.kind, input_set.seed
                )
                expected = references.load(io.BytesIO(worker.reference(request))).outputs
                lines += [
                    f"inputs {array.tobytes()[:16].hex()} {number}"
                    for array in input_sets.draw(input_set)
                ]
                n_inputs = len(workload["arguments"]) - workload["n_outputs"]
                for output, (each, (_, dtype)) in enumerate(
                    zip(expected, workload["arguments"][n_inputs:], strict=True)
                ):
                    file = self.path.with_name(f"{workload['workload']}-{number}-{output}")
                    file.write_bytes(each.values.astype(dtype).tobytes())
                    lines += [
                        f"writes {name} {position} {number} {file}"
                        for name, pointers in kernels
                        for position, index_of in enumerate(pointers)
                        if index_of == n_inputs + output
                    ]
            lines += [f"takes {name} {len(pointers)}" for name, pointers in kernels]
        self.path.write_text("\n".join(lines) + "\n")

    def does(self, candidate: Mapping[str, Any], what: str) -> None:
        """Have the kernels of a candidate crash, hang, fault, or write nothing."""
        with self.path.open("a") as stream:
            for kernel in candidate["kernels"]:
                stream.write(f"does {kernel['name']} {what}\n")

    def takes(self, candidate: Mapping[str, Any], alone: float, in_network: float) -> None:
        """Have the first kernel of a candidate take microseconds alone and in its network."""
        name = candidate["kernels"][0]["name"]
        with self.path.open("a") as stream:
            stream.write(f"takes-us {name} {alone} {in_network}\n")

    def graphs(self, what: str) -> None:
        """Have graphs of whole networks crash or hang."""
        with self.path.open("a") as stream:
            stream.write(f"graphs {what}\n")
