"""Settings and their sources."""

from pathlib import Path

import pytest

from tuner.build_cache.cache import open_cache
from tuner.errors import RequestError
from tuner.settings import Settings, read_settings


def test_the_cache_is_in_the_data_directory(tmp_path: Path) -> None:
    """By default the cache has no second tier."""
    settings = read_settings({"data_dir": tmp_path}, {})

    assert (settings.cache_dir, settings.cache_remote) == (tmp_path / "cache", None)
    assert Settings("", tmp_path, "engine", 1).cache_dir == tmp_path / "cache"
    assert open_cache(settings).root == tmp_path / "cache"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """The first source that names a setting decides; an empty variable stands for none."""
    file = tmp_path / "config.toml"
    file.write_text('cache_dir = "/from/file"\ncache_remote = "memory://of/file"\n')
    environ = {"TUNER_CONFIG": str(file)}

    assert read_settings({}, environ).cache_dir == Path("/from/file")
    assert read_settings({}, environ).cache_remote == "memory://of/file"
    environ["TUNER_CACHE_DIR"] = "/from/environment"
    environ["TUNER_CACHE_REMOTE"] = ""
    assert read_settings({}, environ).cache_dir == Path("/from/environment")
    assert read_settings({}, environ).cache_remote is None
    flags = {"cache_dir": Path("/from/flag")}
    assert read_settings(flags, environ).cache_dir == Path("/from/flag")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1"}, "/store/3-1"),
        ({"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "/store/7-0"),
        ({"PMI_RANK": "2", "MPI_LOCALRANKID": "2"}, "/store/2-2"),
        ({"SLURM_PROCID": "9", "SLURM_LOCALID": "4"}, "/store/9-4"),
        ({"RANK": "1", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, "/store/1-1"),
    ],
)
def test_the_cache_directory_contains_the_rank(environ: dict[str, str], expected: str) -> None:
    """Each launcher has its own variables; the innermost launcher wins."""
    environ = {**environ, "TUNER_CACHE_DIR": "/store/{rank}-{local_rank}"}

    assert read_settings({}, environ).cache_dir == Path(expected)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "contains {rank}, but none of RANK, .* is set"),
        ({"LOCAL_RANK": "1"}, "none of RANK"),
        ({"RANK": ""}, "none of RANK"),
        ({"RANK": "../../etc"}, "must be a number"),
        ({"RANK": "-1"}, "must be a number"),
    ],
)
def test_a_missing_or_malformed_rank_is_rejected(environ: dict[str, str], message: str) -> None:
    """Otherwise all ranks would share a directory with a brace in its name."""
    with pytest.raises(RequestError, match=message):
        read_settings({}, {**environ, "TUNER_CACHE_DIR": "/store/{rank}"})


@pytest.mark.parametrize("value", ["0", "-0.1", "1.5", "nan", "much"])
def test_the_device_tolerance_is_a_fraction(value: str) -> None:
    """It is 5 percent by default and lies in (0, 1]."""
    assert read_settings({}, {}).device_tolerance == 0.05
    assert read_settings({}, {"TUNER_DEVICE_TOLERANCE": "0.1"}).device_tolerance == 0.1
    with pytest.raises(RequestError, match="device_tolerance must be above 0 and at most 1"):
        read_settings({}, {"TUNER_DEVICE_TOLERANCE": value})
