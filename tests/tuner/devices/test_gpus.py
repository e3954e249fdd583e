"""Tests of the GPU inventory, on a machine without a GPU, and of NVML's masks."""

import pytest

from tuner.devices import gpus, inventory


@pytest.mark.parametrize(
    ("mask", "reasons", "throttled"),
    [
        (0x000, (), ()),
        (0x001, ("idle",), ()),
        (0x002, ("applications clocks setting",), ()),
        (0x110, ("sync boost", "display clock setting"), ()),
        (0x004, ("software power cap",), ("software power cap",)),
        (
            0x048,
            ("hardware slowdown", "hardware thermal slowdown"),
            ("hardware slowdown", "hardware thermal slowdown"),
        ),
        (
            0x0A1,
            ("idle", "software thermal slowdown", "hardware power brake slowdown"),
            ("software thermal slowdown", "hardware power brake slowdown"),
        ),
        (0x8001, ("idle", "reason 0x8000"), ()),
    ],
)
def test_masks_are_named(mask: int, reasons: tuple[str, ...], throttled: tuple[str, ...]) -> None:
    """Settings and idleness do not throttle; an unknown reason is named by its bit."""
    assert gpus.name_reasons(mask) == reasons
    assert gpus.throttling(reasons) == throttled


def test_readings_are_merged() -> None:
    """The merged reading has the later clocks and the reasons of both."""
    before = {"sm_mhz": 1200, "reasons": ["idle"], "throttled": []}
    after = {"sm_mhz": 1700, "reasons": ["software power cap"], "throttled": ["software power cap"]}

    merged = gpus.merge_conditions(before, after)

    assert merged == {
        "sm_mhz": 1700,
        "reasons": ["idle", "software power cap"],
        "throttled": ["software power cap"],
    }
    assert gpus.merge_conditions({}, {}) == {}
    assert gpus.merge_conditions(after, {})["throttled"] == ["software power cap"]


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("GPU-bb", [1]),
        ("GPU-c, 0", [2, 0]),
        ("GPU-", []),
        ("0,7,1", [0]),
        ("1,1", [1]),
    ],
)
def test_hidden_gpus_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, indices: list[int]
) -> None:
    """A process that may use some GPUs of a machine measures on those alone."""
    uuids = ("GPU-aa1", "GPU-bb2", "GPU-cc3")
    all_gpus = tuple(
        gpus.Gpu(index, uuid, "NVIDIA Test", "9.0", "580", "13.0", None, None)
        for index, uuid in enumerate(uuids)
    )
    monkeypatch.setattr(gpus, "list_gpus", lambda: all_gpus)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    devices = inventory.usable_devices()

    assert devices[0].name == "cpu"
    assert [device.name for device in devices[1:]] == [f"gpu{index}" for index in indices]
    assert all(device.environ["CUDA_VISIBLE_DEVICES"] in uuids for device in devices[1:])
    assert len(inventory.local_devices()) == 4


def test_architecture_follows_from_the_capability() -> None:
    """The architecture joins both parts of a capability, also of 10 and above."""
    gpu = gpus.Gpu(0, "GPU-0", "NVIDIA Test", "12.0", "580", "13.0", None, None)

    assert gpu.arch == "sm_120"


@pytest.mark.skipif(bool(gpus.list_gpus()), reason="this machine has a GPU")
def test_machine_without_a_driver_has_no_gpus() -> None:
    """Without a driver, the functions return nothing and raise nothing."""
    assert gpus.list_gpus() == ()
    assert gpus.visible_gpu() is None
    assert gpus.read_conditions("GPU-0") == {}
