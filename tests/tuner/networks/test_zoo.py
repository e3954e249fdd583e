"""Zoo networks can be built and run, and are reproducible."""

import numpy as np
import pytest

from tests.tuner.networks.models import difference, run
from tuner.errors import ModelError
from tuner.networks.load import load_network
from tuner.networks.zoo import catalogue

#: Name, a small image, and the input shape it gives.
SMALL = [
    ("inception_v3", 75, (1, 75, 75, 3)),
    ("mlp", 28, (1, 1, 28, 28)),
    ("mobilenet", 32, (1, 32, 32, 3)),
    ("resnet-18", 32, (1, 32, 32, 3)),
    ("resnet-34", 32, (1, 32, 32, 3)),
    ("resnet-50", 64, (1, 64, 64, 3)),
    ("resnet3d-18", 40, (1, 16, 40, 40, 3)),
    ("squeezenet_v1.1", 64, (1, 64, 64, 3)),
]
# Networks that take seconds even with small images.
LARGE = {"inception_v3", "resnet-34", "resnet-50", "resnet3d-18"}


def test_every_network_is_tested() -> None:
    """A new entry needs a row in the table above."""
    assert {name for name, _, _ in SMALL} == set(catalogue.ENTRIES)


@pytest.mark.parametrize(
    ("name", "image", "shape"),
    [
        pytest.param(*row, marks=pytest.mark.slow("runs a large network"))
        if row[0] in LARGE
        else row
        for row in SMALL
    ],
)
def test_networks_run(name: str, image: int, shape: tuple[int, ...]) -> None:
    """The outputs are finite, differ by class and by input, and sum to one."""
    network = load_network(f"zoo:{name}?image={image}&classes=16")

    assert {key: spec.shape for key, spec in network.inputs.items()} == {"data": shape}
    assert {key: spec.shape for key, spec in network.outputs.items()} == {"output": (1, 16)}
    rng = np.random.default_rng(0)
    first, second = (
        run(network.model, {"data": rng.standard_normal(shape, dtype=np.float32)})[0]
        for _ in range(2)
    )
    np.testing.assert_allclose(first.sum(), 1.0, rtol=1e-5)
    assert 0.01 < first.std() / first.mean() < 3.9  # 3.9 would be a single class
    assert difference(second, first) > 1e-3


@pytest.mark.parametrize(
    "name",
    [
        "mobilenet",
        pytest.param("resnet3d-18", marks=pytest.mark.slow("runs a network in three dimensions")),
    ],
)
def test_layouts_agree(name: str) -> None:
    """The same image gives the same output in either layout."""
    last = load_network(f"zoo:{name}?image=32&classes=8&layout=NHWC")
    first = load_network(f"zoo:{name}?image=32&classes=8&layout=NCHW")
    data = np.random.default_rng(0).random(last.inputs["data"].shape, dtype=np.float32)

    expected = run(first.model, {"data": np.ascontiguousarray(np.moveaxis(data, -1, 1))})[0]

    np.testing.assert_allclose(run(last.model, {"data": data})[0], expected, rtol=1e-5)
    assert last.sha256 != first.sha256


def test_bytes_are_deterministic() -> None:
    """Equal queries give equal bytes; every option changes them."""
    query = "zoo:squeezenet_v1.1?image=64&classes=10"
    first = load_network(query)

    assert load_network(query).sha256 == first.sha256
    for option in ("seed=1", "batch=2", "dtype=float16", "layout=NCHW"):
        assert load_network(f"{query}&{option}").sha256 != first.sha256
    assert load_network(query, random_weights=5).sha256 != first.sha256


def test_half_precision() -> None:
    """Input, weights and output are float16."""
    network = load_network("zoo:resnet-18?image=32&classes=10&dtype=float16")
    assert network.inputs["data"].dtype == network.outputs["output"].dtype == "float16"
    output = run(network.model, {"data": np.ones((1, 32, 32, 3), np.float16)})[0]
    assert np.isfinite(output).all()


def test_image_size_is_image() -> None:
    """Both names of the option give the same network."""
    assert load_network("zoo:mlp?image_size=8").sha256 == load_network("zoo:mlp?image=8").sha256


def test_the_full_resnet_has_its_parameters() -> None:
    """About 11.7 million, as in the literature."""
    model = catalogue.build("resnet-18")
    n_parameters = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert 11.6e6 < n_parameters < 11.8e6


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("resnet18", r"did you mean zoo:resnet-18\? available: inception_v3, mlp, "),
        ("nothing-like-it", r"no zoo network 'nothing-like-it': available: "),
        ("", r"no zoo network ''"),
        ("mlp?size=3", r"no option 'size=3': write option=value with batch, layout"),
        ("mlp?batch", r"no option 'batch'"),
        ("mlp?batch=1&batch=2", r"option 'batch' is given twice"),
        ("mlp?image=8&image_size=9", r"option 'image' is given twice"),
        ("mlp?batch=0", r"batch='0' must be a whole number from 1 to"),
        ("mlp?batch=1.5", r"batch='1.5' must be a whole number"),
        ("mlp?batch=" + "9" * 5000, r"must be a whole number"),
        ("mlp?layout=NCWH", r"layout='NCWH' is unknown: expected NHWC or NCHW"),
        ("mlp?dtype=int8", r"expected float32 or float16"),
        ("inception_v3?image=74", r"image='74' must be a whole number from 75 to"),
    ],
)  # fmt: skip
def test_bad_queries(query: str, message: str) -> None:
    """The message lists the valid names or options."""
    with pytest.raises(ModelError, match=message) as caught:
        load_network(f"zoo:{query}")
    assert "\n" not in str(caught.value)


def test_a_zoo_network_takes_no_input_shapes() -> None:
    """Its shape is set by an option."""
    with pytest.raises(ModelError, match=r"set its shape with \?batch=N&image=N"):
        load_network("zoo:mlp", {"data": (4, 1, 28, 28)})
