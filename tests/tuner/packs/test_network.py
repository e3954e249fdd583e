"""Networks of packs: their memory and the comparison of their outputs."""

from types import SimpleNamespace

import numpy as np
import pytest

from tuner.packs.runner.driver import CudaError
from tuner.packs.runner.network import Network, difference


@pytest.mark.parametrize(
    ("outputs", "others", "expected"),
    [
        ([3.0, 4.5], [3.0, 4.0], 0.1),
        ([3.0, np.nan], [3.0, 4.0], None),
        ([3.0, 4.0], [3.0, np.inf], None),
        ([3.0, np.nan], [3.0, np.nan], 0.0),
    ],
)
def test_numbers_that_are_not_finite_differ_unless_they_are_equal(
    outputs: list[float], others: list[float], expected: float | None
) -> None:
    """They hide neither behind the outputs before nor behind those after."""
    given, compared, equal = (
        np.array(each, "float32").view("uint8") for each in (outputs, others, [1.0, 2.0])
    )

    worst = difference(["float32"] * 3, [equal, given, equal], [equal, compared, equal])

    assert worst == (expected if expected is None else pytest.approx(expected))


class _Driver:
    """A device with room for some blocks."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks, self.blocks = n_blocks, set[int]()

    def allocate(self, _n_bytes: int) -> int:
        if len(self.blocks) == self.n_blocks:
            raise CudaError("out of memory")
        self.blocks.add(len(self.blocks) + 1)
        return len(self.blocks)

    def fill(self, address: int, _n_bytes: int, _value: int) -> None:
        assert address in self.blocks

    def free(self, address: int) -> None:
        self.blocks.remove(address)


def test_network_that_does_not_fit_leaves_no_memory_in_use() -> None:
    """The next one has all of the device."""
    driver = _Driver(2)
    network = {"blocks": [{"n_bytes": 16, "dtype": ""}] * 3, "others": {}}
    contents = SimpleNamespace(pack=SimpleNamespace(network_content=lambda _: b""))

    with pytest.raises(CudaError, match="out of memory"):
        Network(driver, contents, network)  # type: ignore[arg-type]

    assert not driver.blocks
