"""A peer that attacks files of the user, for a worker to call by name."""

import os
from pathlib import Path

import numpy as np

from tests.tuner.workers.inside_sandbox import replace_folder
from tuner.engines.base import NetworkRun
from tuner.library.arrays import write_arrays
from tuner.peers.base import PeerModel

NAME = "tests.tuner.compile.hostile_peer"


def run_model(model: PeerModel, request: NetworkRun) -> tuple[float, ...]:
    """Answer as a peer at the mercy of its model, whose path says with which file."""
    kind, _, path = model.path.partition(":")
    victim, returned = Path(path), Path(request.outputs)
    if kind == "input link":
        returned.with_name("inputs.npz").unlink(missing_ok=True)
        returned.with_name("inputs.npz").symlink_to(victim)
        write_arrays(returned, {"output_0": np.zeros(1)})
    elif kind == "link":
        returned.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(returned)
    elif kind == "replaced folder":
        replace_folder(str(returned.parent), str(victim.parent))
    elif kind == "bomb":
        np.savez_compressed(returned, output_0=np.zeros(100_000))
    else:
        with returned.open("wb") as stream:
            np.save(stream, np.zeros(1))
    return ()
