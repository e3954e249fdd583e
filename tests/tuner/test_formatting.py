"""Numbers, times and the task scheduler table as text."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.tuner.views import job_summary
from tuner import formatting
from tuner.schemas import JobView, OutlookView


@pytest.mark.parametrize("secs", [None, float("inf"), float("nan")])
def test_unknown_times_are_dashes(secs: float | None) -> None:
    """A latency and a duration that are not known yet are printed alike."""
    assert formatting.milliseconds(secs) == formatting.DASH
    assert formatting.short_milliseconds(secs) == formatting.DASH
    assert formatting.clock(secs) == formatting.DASH


def test_latencies_are_milliseconds() -> None:
    """Seconds become milliseconds without a unit, with separated thousands."""
    assert formatting.milliseconds(0.00123456) == "1.2346"
    assert formatting.milliseconds(1.5) == "1,500.0000"
    assert formatting.short_milliseconds(0.00123456) == "1.235"


@pytest.mark.parametrize(
    ("total", "untuned", "text"),
    [
        (None, 2e-3, "latency unknown"),
        (1e-3, None, "1.0000 ms"),
        (1e-3, 2e-3, "1.0000 ms, 2.00 times as fast as untuned"),
        (2e-3, 1e-3, "2.0000 ms, no gain over 1.0000 ms untuned"),
    ],
)
def test_a_latency_is_compared_with_the_untuned_one(
    total: float | None, untuned: float | None, text: str
) -> None:
    """No ratio below 1 is called fast."""
    assert formatting.latency(total, untuned) == text


def test_facts_are_words() -> None:
    """Values of JSON are written as people write them."""
    facts = {"disturbed": True, "throttled": ["power", "heat"], "clock": None}

    assert formatting.plain(facts) == "disturbed yes, throttled power, heat, clock none"


def test_durations_are_hours_minutes_and_seconds() -> None:
    """Seconds are rounded."""
    assert formatting.clock(3725.4) == "1:02:05"


@pytest.mark.parametrize(
    ("secs", "expected"),
    [(0, "0 s ago"), (59, "59 s ago"), (130, "2 min ago"), (7200, "2 h ago"), (864000, "10 d ago")],
)
def test_ages_take_the_largest_unit(secs: float, expected: str) -> None:
    """Aware times and Unix times are printed alike, and a time in the future has age 0."""
    then = datetime.now(UTC) - timedelta(seconds=secs)

    assert formatting.age(then) == expected
    assert formatting.age(then.timestamp()) == expected
    assert formatting.age(datetime.now(UTC) + timedelta(hours=1)) == "0 s ago"


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1536, "1.5 kB"),
        (2e9, "2.0 GB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_sizes_take_decimal_units(n_bytes: float | None, expected: str) -> None:
    """A kilobyte is 1000 bytes, as in the options of ``tuner cache gc``."""
    assert formatting.size(n_bytes) == expected


@pytest.mark.parametrize(
    ("spent", "budget", "expected"),
    [
        (1, None, "1 trial"),
        (0, None, "0 trials"),
        (1, 100, "1 of 100 trials"),
        (1, 1, "1 of 1 trial"),
    ],
)
def test_one_trial_is_singular(spent: int, budget: int | None, expected: str) -> None:
    """The noun agrees with the number before it."""
    job = job_summary(spent_trials=spent, budget_trials=budget)

    assert formatting.spent(job) == f"{expected}, 0:01:01"
    assert formatting.counted(2, "best record") == "2 best records"
    assert formatting.counted(2, "entry") == "2 entries"


@pytest.mark.parametrize(
    ("n_trials", "expected"), [(1, "1 more trial saves "), (64, "64 more trials save ")]
)
def test_the_verb_agrees_with_the_trials_of_a_forecast(n_trials: int, expected: str) -> None:
    """One trial saves, several save."""
    view = JobView(
        job=job_summary(),
        tasks=[],
        outlook=OutlookView(n_trials=n_trials, saving=1e-3, spread=1e-4),
    )

    assert any(f"forecast   {expected}" in line for line in formatting.job_facts(view))


def test_shares_and_counts() -> None:
    """Unknown values are dashes here as well."""
    assert (formatting.percent(0.1234), formatting.percent(None)) == ("12.3%", "-")
    assert (formatting.count(12345.0), formatting.count(None)) == ("12,345", "-")
    assert (formatting.throughput(1234.56), formatting.throughput(0.0)) == ("1234.6", "-")


@pytest.mark.parametrize(
    ("trace", "lines"),
    [
        (
            '[[["GetLoops",["b0"],[],["l1","l2"]],["Tile",["l1"],[2],["v3"]]],[[1,[4,2]]]]',
            ["l1, l2 = GetLoops(b0)", "v3 = Tile(l1, 2)  # [4, 2]"],
        ),
        ('{"variant":"v-1","trace":[[["A",[],[],[]]],[]]}', ['{"variant": "v-1"}', "A()"]),
        *(
            pytest.param(text, [text], id=text[:20])
            for text in (
                *('{"task":1}', "[[1,2]]", '[[["A",[],[],[]]],[[Infinity,1]]]'),
                *("[" * 9999 + "]" * 9999, '{"trace":' * 9999 + "1" + "}" * 9999),
            )
        ),
        ("cut off [", ["cut off ["]),
    ],
)
def test_a_trace_has_an_instruction_a_line(trace: str, lines: list[str]) -> None:
    """Traces of other engines, and damaged ones, are shown as they are."""
    assert formatting.trace_lines(trace) == lines


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ('{"keys":["cpu"],"kind":"llvm","mcpu":"znver3","num-cores":2}', "llvm znver3, 2 cores"),
        ('{"arch":"sm_90","kind":"cuda"}', "cuda sm_90"),
        ("llvm -mcpu=x", "llvm -mcpu=x"),
        ('{"kind":1}', '{"kind":1}'),
        (None, "-"),
    ],
)
def test_a_target_has_a_short_name(spec: str | None, name: str) -> None:
    """The kind, the processor and the cores; what is not JSON stays as it is."""
    assert formatting.target_name(spec) == name
