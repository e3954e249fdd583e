"""CPUs that report other features than their model has, and code that they do not run."""

import platform
from pathlib import Path

import pytest

from tests.tuner.library.small_library import described
from tuner.errors import TargetError
from tuner.library import processors

_V2 = "fpu sse sse2 ht syscall nx lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
_V3 = f"{_V2} fma movbe avx f16c abm bmi1 avx2 bmi2"
_V4 = f"{_V3} avx512f avx512dq avx512cd avx512bw avx512vl"


def reported(flags: str) -> frozenset[str]:
    """Return the features of an x86-64 CPU with flags of /proc/cpuinfo."""
    features = processors.reported_features("x86_64", {"flags": flags})
    assert features is not None
    return features


@pytest.mark.parametrize(
    ("named", "flags", "expected"),
    [
        # A CPU that reports what its model has.
        (_V4, _V4, {"mcpu": "model"}),
        # More than the model has, as a later stepping may: what the model lacks is not used.
        (_V3, f"{_V3} avx_vnni", {"mcpu": "model"}),
        # A hypervisor that hides AVX-512 of a Zen 4 or a Skylake.
        (
            _V4,
            _V3,
            {
                "mcpu": "model",
                "mattr": ["-avx512bw", "-avx512cd", "-avx512dq", "-avx512f", "-avx512vl"],
            },
        ),
        # "QEMU Virtual CPU": LLVM takes it for an old model with more than it has.
        (
            f"{_V2} sse4a",
            "fpu sse sse2 lm pni cx16 abm",
            {"mcpu": "model", "mattr": ["-popcnt", "-sse4.1", "-sse4.2", "-sse4a", "-ssse3"]},
        ),
        # A virtual machine that shows an old model with the features of its host.
        ("sse sse2 pni", _V3, {"mcpu": "x86-64-v3"}),
        ("sse sse2 pni", f"{_V4} avx512_vnni", {"mcpu": "x86-64-v4"}),
    ],
)
def test_a_target_names_what_the_cpu_reports(
    named: str, flags: str, expected: dict[str, object]
) -> None:
    """Features that the kernel does not report are switched off."""
    assert processors.detected("x86_64", "model", reported(named), reported(flags)) == expected


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("fpu sse sse2", "x86-64"),
        (_V2, "x86-64-v2"),
        (_V3, "x86-64-v3"),
        (_V3.replace("fma ", ""), "x86-64-v2"),
        (_V4, "x86-64-v4"),
        # Knights Landing has no AVX-512 BW.
        (_V4.replace("avx512bw ", ""), "x86-64-v3"),
    ],
)
def test_a_level_needs_all_of_its_features(flags: str, level: str) -> None:
    """The levels are those of the x86-64 psABI."""
    assert processors.level_of(reported(flags)) == level


def test_a_kernel_that_reports_nothing_forbids_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Emulators may show the fields of another machine, or none."""
    monkeypatch.setattr(processors, "_CPU_INFO", tmp_path / "missing")
    processors.cpu_fields.cache_clear()
    try:
        assert processors.refusal(processors.this_machine(), ["avx512f"]) == ""
    finally:
        processors.cpu_fields.cache_clear()


def test_only_the_first_core_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fields of the second core are not those of the CPU."""
    path = tmp_path / "cpuinfo"
    path.write_text("model name\t: One\nflags\t\t: sse avx\n\nmodel name\t: Two\nflags\t\t: sse\n")
    monkeypatch.setattr(processors, "_CPU_INFO", path)
    processors.cpu_fields.cache_clear()
    try:
        assert processors.cpu_fields() == {"model name": "One", "flags": "sse avx"}
    finally:
        processors.cpu_fields.cache_clear()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares features of x86-64")
def test_a_library_for_a_cpu_with_more_features_is_refused(tmp_path: Path) -> None:
    """The error names what is missing, and a level that this CPU has."""
    library = described(machine="x86_64", features=("egpr", "sse3"))

    with pytest.raises(TargetError) as caught:
        processors.check_library(library, tmp_path)

    text = str(caught.value)
    assert "it needs egpr, which this CPU" in text
    assert "llvm -mcpu=x86-64" in text
    assert len(text.splitlines()) == 1


def test_a_library_for_another_machine_is_refused(tmp_path: Path) -> None:
    """The error names both machines."""
    here = processors.this_machine()
    with pytest.raises(TargetError, match=rf"code for riscv64, this machine is {here}; build it"):
        processors.check_library(described(machine="riscv64"), tmp_path)


def test_a_library_of_an_unknown_machine_is_not_refused(tmp_path: Path) -> None:
    """Engines of others need not name one."""
    processors.check_library(described(), tmp_path)
