"""The caches that settings name."""

from pathlib import Path

import pytest

from tests.tuner.build_cache.entries import key
from tuner.build_cache.opening import open_cache, open_local
from tuner.settings import read_settings


def test_parts_of_one_work_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each opens a cache of its own, and what is wrong is the same for all."""
    (tmp_path / "file").touch()
    settings = read_settings({"data_dir": tmp_path, "cache_dir": tmp_path / "file"})

    for cache in (open_local(settings), open_cache(settings)):
        for number in range(2):
            cache.get_or_make(key(number), lambda _: {}).entry.close()

    assert [record.message for record in caplog.records] == [
        f"cannot write the cache {tmp_path / 'file'}: Not a directory; nothing is kept in it"
    ]
