"""Peaks of GPUs are those of their data sheets, or above where clocks may be higher."""

import pytest

from tuner.devices.gpus import Gpu, GpuLimits
from tuner.engines.relax.run import peaks
from tuner.errors import RequestError

# Name, capability, multiprocessors, highest clocks of these and of the memory (MHz), and its bits;
# then what the data sheet has: products of float16 and bytes per second.
_SHEETS = [
    ("A100-SXM4-80GB", "8.0", 108, 1410, 1593, 5120, 312e12, 2.039e12),
    ("A10", "8.6", 72, 1695, 6251, 384, 125e12, 0.6e12),
    ("L4", "8.9", 58, 2040, 6251, 192, 121e12, 0.3e12),
    ("GeForce RTX 4090", "8.9", 128, 2520, 10501, 384, 330e12, 1.008e12),
    ("H100 80GB HBM3", "9.0", 132, 1980, 2619, 5120, 989e12, 3.35e12),
    ("H200", "9.0", 132, 1980, 3201, 6144, 989e12, 4.8e12),
    ("B200", "10.0", 148, 1965, 3996, 8192, 2250e12, 8e12),
]


def _gpu(name: str, capability: str, mhz: int | None, memory_mhz: int | None) -> Gpu:
    return Gpu(0, "GPU-a", f"NVIDIA {name}", capability, "580", "13.0", mhz, memory_mhz)


@pytest.mark.parametrize("sheet", _SHEETS, ids=lambda sheet: str(sheet[0]))
def test_peaks_are_not_below_the_data_sheet(
    sheet: tuple[str, str, int, int, int, int, float, float],
) -> None:
    """Data sheets state lower clocks for products than the highest; a roof has to be a bound."""
    name, capability, n_multiprocessors, mhz, memory_mhz, bits, flops, n_bytes = sheet
    limits = GpuLimits(49152, 101376, 65536, 32, 1024, 50 << 20, n_multiprocessors, bits)

    known = peaks.peaks_of(_gpu(name, capability, mhz, memory_mhz), limits)

    assert 0.99 * flops < known.flops["float16"] < 1.1 * flops
    assert 0.99 * n_bytes < known.memory_bandwidth < 1.05 * n_bytes
    assert known.flops["float16"] / 8 < known.flops["float32"] < known.flops["int8"]
    assert known.cache_bandwidth > known.memory_bandwidth
    assert known.weights_kept_secs is None


def test_a_gpu_without_clocks_has_no_peaks() -> None:
    """NVML may not tell them."""
    limits = GpuLimits(49152, 101376, 65536, 32, 1024, 50 << 20, 132, 5120)

    with pytest.raises(RequestError, match="clocks of NVIDIA H100"):
        peaks.peaks_of(_gpu("H100", "9.0", None, 2619), limits)
