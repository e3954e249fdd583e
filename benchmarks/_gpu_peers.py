"""Torch on the same device in workers of its own: eager, compiled, and as a CUDA graph."""

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
    """Return the versions of torch and its name for the device."""
    import torch

    versions: dict[str, Any] = {"torch": torch.__version__, "torch_cuda": torch.version.cuda}
    if device == "cuda":
        versions["cudnn"] = torch.backends.cudnn.version()
        versions["device"] = torch.cuda.get_device_name(0)
        versions["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    return versions


def set_up(network: Network, kind: str, device: str, n_threads: int) -> dict[str, float]:
    """Set up a network, and run it until it is warm.

    Args:
        network: Network to set up.
        kind: Name of the peer, one of those above.
        device: ``cpu`` or ``cuda``.
        n_threads: Number of threads for operators on a CPU.

    Returns:
        ``set_up_secs``: seconds of the set-up, including compilation.
    """
    import torch

    torch.set_num_threads(n_threads)
    torch.backends.cudnn.benchmark = True  # cuDNN tries its algorithms
    started = time.perf_counter()
    module, x = network.module().to(device), _place(network, device)
    if network.is_image:
        # Fastest layout of torch's own libraries in float16.
        module, x = (part.to(memory_format=torch.channels_last) for part in (module, x))
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
    """Run and time the network as :meth:`tuner.engines.base.Engine.run_network` does."""
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
    """Write the output of the same weights, computed in float32."""
    import torch

    module, x = network.module().float().to(device), _place(network, device).float()
    _refuse_tf32()
    with torch.inference_mode():
        np.savez(outputs, y=module(x).cpu().numpy())


def run_zoo(query: str, device: str, inputs: str, outputs: str) -> None:
    """Write torch's output of a network of the zoo, in float32."""
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
    """Record one run as a CUDA graph; the input keeps its address."""
    import torch

    # Unrecorded runs let libraries choose algorithms and allocate workspace.
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
    """Compute float32 convolutions and products in full precision; float16 is not affected."""
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
