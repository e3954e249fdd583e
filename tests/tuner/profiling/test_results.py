"""A profile as a page, a table of notebooks and a data frame."""

from dataclasses import replace

from tests.tuner.profiling.small_profile import PROFILE
from tuner.profiling.page import as_page


def test_kernels_of_one_name_are_told_apart() -> None:
    """Their names have a part of the hash wherever they are shown."""
    (kernel,), (call,), (peer,) = PROFILE.kernels, PROFILE.calls, PROFILE.peers
    other = "v" * 16
    profile = replace(
        PROFILE,
        kernels=(kernel, replace(kernel, workload=other)),
        calls=(call, replace(call, workload=other)),
    )

    names = [f"{kernel.name} {digit * 6}" for digit in "wv"]
    assert [*profile.names.values()] == names
    assert [work.kernels for work in profile.shared_work(peer)] == [(names[0],)]
    for text in (as_page(profile), profile._repr_html_()):
        assert all(name in text for name in names)
    assert [*profile.to_pandas()["verdict"]] == ["compute", "compute"]
