"""A profile of one kernel with a peer."""

from tuner.peers.base import PeerNode
from tuner.profiling.peer_profile import PeerProfile, SharedWork
from tuner.profiling.results import CallProfile, KernelProfile, LibraryProfile
from tuner.profiling.verdicts import Verdict

_NODES = ("conv_<1>", "bias", "relu_1", "pool")
PROFILE = LibraryProfile(
    model_name="network of s0",
    n_runs=5,
    median_secs=3.1e-3,
    plain_secs=3e-3,
    between_secs=1e-4,
    kernels=(
        KernelProfile(
            name="conv2d_add_relu[1x8x8x8]",
            workload="w" * 16,
            n_calls=1,
            secs=2e-3,
            share=0.66,
            record_secs=1.9e-3,
            flop=2e7,
            n_bytes=40_000,
            n_threads=2,
            variant="winograd-4x4",
            nodes=_NODES,
            turn_secs=(2e-3,),
            gflops=10.0,
            roof_share=0.4,
            n_trials=64,
            verdict=Verdict("compute", "tuner tune net.onnx"),
        ),
    ),
    calls=(CallProfile("call_0_0", "w" * 16, "conv2d_add_relu[1x8x8x8]", 0.0, 2e-3, 0.0, _NODES),),
    n_threads=2,
    inputs={"data": ((1, 8, 8, 8), "float32")},
    peers=(
        PeerProfile(
            "onnxruntime",
            "1.31",
            (PeerNode("fused", "Conv", 1.5e-3, (0, 1, 2)),),
            (SharedWork((0,), (0,), 2e-3, 1.5e-3),),
        ),
    ),
)
