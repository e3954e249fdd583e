"""Compilation of candidates for packs: Triton's kernels, which need no host code."""

import math
from dataclasses import astuple

import numpy as np
from tvm.s_tir import Schedule

from tuner.engines.packed import WORKSPACE, KernelOffer, PackedCandidate, PackedKernel
from tuner.engines.relax.codegen.build import n_outputs
from tuner.engines.relax.ir import traces, workloads
from tuner.engines.relax.schedules.gpu import block_limits
from tuner.engines.relax.target.targets import make_target
from tuner.engines.relax.triton import gpus, programs, variants
from tuner.engines.relax.triton.cold_arguments import cold_arguments
from tuner.engines.relax.triton.compilation import compiler
from tuner.errors import RequestError, WorkError, install_command


def offer_kernels(ir: bytes, target: str) -> KernelOffer:
    """Return the configurations of a workload; see :class:`Engine`."""
    arch = str(make_target(target).attrs["arch"])
    if not compiler.is_installed():
        raise RequestError(f"packs need Triton: {install_command('triton')}")
    if not compiler.supports(arch):
        raise RequestError(f"Triton compiles no kernels for {arch}")
    module = workloads.load(ir)
    function = module["main"]
    for template in variants.TEMPLATES:
        matched = template.find(function)
        if matched is not None:
            choices = template.ranked(matched, compiler.number_of(arch))
            # What a subgraph costs, not which choice is best.
            numbers = [each for each in astuple(choices[0]) if isinstance(each, int)]
            gpu = gpus.gpu_of(compiler.number_of(arch))
            return KernelOffer(
                names=tuple(choice.name for choice in choices),
                secs=float(template.estimate_secs(matched, np.array([numbers]), gpu)[0]),
                arguments=tuple(
                    (tuple(int(size) for size in param.shape), str(param.dtype))
                    for param in function.params
                ),
                n_outputs=n_outputs(function),
                weights=tuple(cold_arguments(function)),
            )
    return KernelOffer()


def pack_candidate(ir: bytes, target: str, name: str) -> PackedCandidate:
    """Compile the configuration of a name; see :class:`Engine`."""
    module, described = workloads.load(ir), make_target(target)
    arch = str(described.attrs["arch"])
    program = variants.print_named(name, module["main"])
    schedule = Schedule(variants.rewrite(name, module))
    kernels = [_packed(kernel, arch) for kernel in program.kernels]
    limit = block_limits.shared_bytes_on_request(described)
    largest = max(kernel.shared_bytes for kernel in kernels)
    if largest > limit:
        raise WorkError(f"a block needs {largest} bytes of shared memory, and has {limit}")
    return PackedCandidate(
        trace=traces.dump(schedule.trace, name),
        module_hash=workloads.hash_of(schedule.mod),
        kernels=kernels,
        workspace_bytes=math.prod(program.workspace) * np.dtype(program.dtype).itemsize
        if program.workspace
        else 0,
    )


def _packed(kernel: programs.Kernel, arch: str) -> PackedKernel:
    binary = compiler.compile_kernel(kernel, arch)
    return PackedKernel(
        name=binary.name,
        code=binary.code,
        n_blocks=kernel.n_blocks,
        n_threads=binary.n_threads,
        shared_bytes=binary.shared_bytes,
        pointers=tuple(
            WORKSPACE if name == programs.WORKSPACE else int(name[1:])
            for name, _ in kernel.pointers
        ),
        n_parameters=binary.n_parameters,
        overlaps=binary.facts.waits,
    )
