"""Torch on the same device: eager, compiled, and as a CUDA graph; in workers of their own."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._gpu_networks import INPUT, Network
from tuner.engines.base import NetworkRun

EAGER, COMPILED, GRAPH = "torch eager", "torch.compile max-autotune", "CUDA graph of eager"
_N_WARM_UPS = 3
_ready: dict[tuple[Network, str], tuple[Callable[[Any], Any], Any]] = {}


def describe(device: str) -> dict[str, Any]:
    """Name the versions of torch and what it calls the device."""
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "torch_cuda": torch.version.cuda}
    if device == "cuda":
        found["cudnn"] = torch.backends.cudnn.version()
        found["device"] = torch.cuda.get_device_name(0)
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    return found


def set_up(network: Network, kind: str, device: str, n_threads: int) -> dict[str, float]:
    """Make a network ready to run, and run it until it is warm.

    Args:
        network: Which one.
        kind: One of the names above.
        device: ``cpu`` or ``cuda``.
        n_threads: For operators on a CPU.

    Returns:
        ``set_up_secs``: what that took, with compiling.
    """
    import torch

    torch.set_num_threads(n_threads)
    torch.backends.cudnn.benchmark = True  # it tries its algorithms, as tuning does
    started = time.perf_counter()
    module, x = network.module().to(device), _place(network, device)
    if network.is_image:
        # The layout in which torch's own libraries are fastest in float16.
        module, x = (each.to(memory_format=torch.channels_last) for each in (module, x))
    function = torch.compile(module, mode="max-autotune") if kind == COMPILED else module
    with torch.inference_mode():
        if kind == GRAPH:
            function = _capture(module, x)
        for _ in range(_N_WARM_UPS):
            function(x)
        _synchronise(device)
    _ready[network, kind] = function, x
    return {"set_up_secs": time.perf_counter() - started}


def run(network: Network, kind: str, request: NetworkRun) -> tuple[float, ...]:
    """Run what was set up and time it, as :meth:`tuner.engines.base.Engine.run_network` does."""
    import torch

    function, x = _ready[network, kind]
    device = x.device.type
    with torch.inference_mode():
        for _ in range(2):
            returned = function(x)
        _synchronise(device)
        if request.outputs:
            np.savez(request.outputs, y=returned.cpu().numpy())
        return tuple(_time(function, x, device) for _ in range(request.n_runs))


def run_precisely(network: Network, device: str, outputs: str) -> None:
    """Keep what the network returns if all of it is computed in float32, on the same weights."""
    import torch

    module, x = network.module().float().to(device), _place(network, device).float()
    _refuse_tf32()
    with torch.inference_mode():
        np.savez(outputs, y=module(x).cpu().numpy())


def run_zoo(query: str, device: str, inputs: str, outputs: str) -> None:
    """Keep what torch makes of a network of the zoo, in float32."""
    import torch

    from benchmarks import _gpu_zoo
    from tuner.networks.zoo import catalogue

    with np.load(inputs) as stored:
        x = torch.from_numpy(stored["data"]).to(device)
    _refuse_tf32()
    with torch.inference_mode():
        returned = _gpu_zoo.evaluate(catalogue.build(query), x)
        np.savez(outputs, output=returned.cpu().numpy())


def _place(network: Network, device: str) -> Any:
    import torch

    return torch.from_numpy(network.inputs()[INPUT]).to(device)


def _capture(module: Any, x: Any) -> Callable[[Any], Any]:
    """Record one run; the input stays where it was then."""
    import torch

    # Libraries choose their algorithms and take their workspace in runs that are not recorded.
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_N_WARM_UPS):
            module(x)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        returned = module(x)

    def replay(_: Any) -> Any:
        graph.replay()
        return returned

    return replay


def _refuse_tf32() -> None:
    """Let no convolution and no product of float32 be computed in less; float16 does not care."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def _synchronise(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _time(function: Callable[[Any], Any], x: Any, device: str) -> float:
    start = time.perf_counter()
    function(x)
    _synchronise(device)
    return time.perf_counter() - start
