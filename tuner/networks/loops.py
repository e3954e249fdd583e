"""Refusal of loops that folding would not finish."""

import onnx

from tuner.errors import ModelError
from tuner.networks.graph import constant_readers, nodes_within

# A loop of constants is folded, which takes about a microsecond a turn and operator.
_MAX_TURNS = 1_000_000


def check_loops(model: onnx.ModelProto) -> None:
    """Check that no Loop of the model has a huge constant number of turns.

    No engine converts a Loop, so one that is not folded is refused anyway.

    Raises:
        ModelError: If one has; the message has the number.
    """
    constants = constant_readers(model.graph)
    for node in nodes_within(model.graph):
        if node.op_type != "Loop" or not node.input or node.input[0] not in constants:
            continue
        turns = int(constants[node.input[0]]().max(initial=0))
        if turns > _MAX_TURNS:
            raise ModelError(
                f"a Loop has {turns} turns, and at most {_MAX_TURNS} can be computed while the "
                "model is loaded: export the model without it",
                code="unsupported-operator",
            )
