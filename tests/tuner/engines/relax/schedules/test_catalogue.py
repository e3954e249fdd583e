"""The table of schedules: every row is used, and names belong to one schedule."""

from itertools import islice

import pytest

from tests.tuner.engines.relax.conftest import described
from tests.tuner.engines.relax.schedules.test_ranking import workload
from tuner.engines.relax import worker
from tuner.engines.relax.schedules import ranking
from tuner.engines.relax.schedules.base import Workload
from tuner.engines.relax.target.targets import make_target


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("conv", ["direct", "tiled"]),
        ("depthwise", ["grouped", "tiled"]),
        ("conv of one channel", ["lanes"]),
        ("product of 197 rows and more", ["ragged", "padded", "direct"]),
        ("softmax", ["rows"]),
    ],
)
def test_rules_of_a_row_take_turns(name: str, rules: list[str]) -> None:
    """The first row that fits is the only one, and each of its rules has a schedule in turn."""
    target = make_target(described("skylake-avx512").spec)

    ranked = ranking.ranked(ranking.describe(workload(name), target))

    first = [rule for rule, _ in islice(ranked, len(rules) + 1)]
    assert first[: len(rules)] == rules
    assert {*first} == {*rules}


@pytest.mark.parametrize(
    ("name", "rule"),
    [("product", "dlight-matmul"), ("sum of columns", "dlight-reduction")],
)
def test_a_gpu_has_rules_of_its_own(name: str, rule: str) -> None:
    """The most special rule comes first, the one for any kernel last."""
    target = make_target(worker.describe_target("cuda:sm_90").spec)

    ranked = [rule for rule, _ in ranking.ranked(Workload(workload(name), target))]

    assert ranked[0] == rule
    assert ranked[-1] == "dlight-fallback"
