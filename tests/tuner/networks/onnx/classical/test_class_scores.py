"""Maps of scores are outputs that are tensors."""

from typing import Any

import numpy as np
import onnx
import pytest

from tests.tuner.networks.classifiers import classifier
from tests.tuner.networks.models import run
from tuner.errors import ModelError
from tuner.networks.onnx.cleaning import clean


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(
    "labels",
    [{"classlabels_int64s": [7, -3, 5]}, {"classlabels_strings": ["b", "c", "a"]}],
    ids=["numbers", "strings"],
)
def test_maps_become_columns(labels: dict[str, Any], opset: int) -> None:
    """In the order of the labels, as the keys of the maps are, and in files of any opset."""
    proto = classifier(opset, **labels)
    data = np.random.default_rng(1).standard_normal((6, 4), dtype=np.float32)

    network = clean(proto, {"data": (6, 4)})

    assert "maps has a column for each of 3 classes, not maps" in network.notes
    nodes = onnx.load_from_string(network.model).graph.node
    assert not {node.domain for node in nodes} - {""}
    label, scores = run(network.model, {"data": data})
    expected_label, maps = run(proto.SerializeToString(), {"data": data})
    np.testing.assert_array_equal(label, expected_label)
    np.testing.assert_allclose(scores, [list(row.values()) for row in maps], atol=1e-6)


def test_maps_without_labels_are_refused() -> None:
    """Before the inference of shapes fails on them."""
    with pytest.raises(ModelError, match="'maps' is not a tensor of numbers") as caught:
        clean(classifier(), {"data": (6, 4)})
    assert caught.value.code == "not-a-tensor"


def test_more_labels_than_scores_are_refused() -> None:
    """ONNX Runtime refuses them when it runs the model."""
    with pytest.raises(ModelError, match="column 3 of 3") as caught:
        clean(classifier(classlabels_int64s=[0, 1, 2, 3]), {"data": (6, 4)})
    assert caught.value.code == "invalid-model"
