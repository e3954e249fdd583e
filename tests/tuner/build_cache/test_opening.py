"""The caches that settings name."""

from pathlib import Path

import pytest

from tests.tuner.build_cache.entries import key
from tuner.build_cache.opening import open_cache, open_local
from tuner.settings import read_settings


def test_caches_of_one_process_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Caches that meet the same problem log it once."""
    (tmp_path / "file").touch()
    settings = read_settings({"data_dir": tmp_path, "cache_dir": tmp_path / "file"})

    for cache in (open_local(settings), open_cache(settings)):
        for number in range(2):
            cache.get_or_make(key(number), lambda _: {}).entry.close()

    assert [record.message for record in caplog.records] == [
        f"cannot write the cache {tmp_path / 'file'}: Not a directory; nothing is kept in it"
    ]
