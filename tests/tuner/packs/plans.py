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
from tuner.engines.relax import worker
from tuner.engines.verification import input_sets, references
from tuner.engines.verification.input_sets import InputSet


def build_driver(folder: Path) -> Path:
    """Compile the driver and NVML into a folder for LD_LIBRARY_PATH."""
    for name, source in (
        ("libcuda.so.1", Path(__file__).with_name("driver.c")),
        ("libnvidia-ml.so.1", Path(drivers.__file__).with_name("nvml.c")),
    ):
        command = [find_compiler(), "-shared", "-fPIC", "-Wall", "-o", str(folder / name)]
        subprocess.run([*command, str(source)], check=True)
    return folder


@dataclass(frozen=True)
class Plan:
    """Work of the kernels of a pack.

    Attributes:
        path: File that ``TUNER_TEST_PLAN`` names.
    """

    path: Path

    def write(self, index: Mapping[str, Any], irs: Mapping[str, bytes], spec: str) -> None:
        """Have every kernel write the expected outputs of its workload.

        Args:
            index: Index of the pack.
            irs: Serialised subgraph by hash of the workload.
            spec: Canonical JSON of the target.
        """
        lines = []
        for workload in index["workloads"]:
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
                        f"writes {kernel['name']} {position} {number} {file}"
                        for candidate in workload["candidates"]
                        for kernel in candidate["kernels"]
                        for position, index_of in enumerate(kernel["pointers"])
                        if index_of == n_inputs + output
                    ]
            lines += [
                f"takes {kernel['name']} {len(kernel['pointers'])}"
                for candidate in workload["candidates"]
                for kernel in candidate["kernels"]
            ]
        self.path.write_text("\n".join(lines) + "\n")

    def does(self, candidate: Mapping[str, Any], what: str) -> None:
        """Have the only kernel of a candidate crash, hang, fault, or write nothing."""
        (kernel,) = candidate["kernels"]
        with self.path.open("a") as stream:
            stream.write(f"does {kernel['name']} {what}\n")
