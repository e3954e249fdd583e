"""The reason of a pick in a sentence, from the terms stored with it."""

from collections.abc import Mapping
from typing import Any

from tuner.formatting import short_milliseconds

_REASONS = {
    "": "no reason was stored",
    "warm_up": "every task gets a first round, those with most operations in an inference first",
    "retry": "all its trials failed so far, and it is due for another try",
    "gradient": "a round here is expected to lower the objective most",
    "tvm": "TVM's rule expects most of a round here",
    "epsilon": "drawn at random among the tasks with something to gain",
    "round_robin": "it has had the fewest rounds",
}


def explain(terms: Mapping[str, Any]) -> str:
    """Return the reason of a pick, with the numbers behind it, as one sentence.

    Args:
        terms: Terms of a :class:`scheduler.decision.Decision`, as stored with the pick:
            latencies in seconds, None where a number was not finite.
    """
    reason = str(terms.get("reason") or "")
    sentence = _REASONS.get(reason, "picked by a rule that this version no longer has")
    numbers = _numbers(reason, terms)
    return sentence + (f": {', '.join(numbers)}" if numbers else "")


def _numbers(reason: str, terms: Mapping[str, Any]) -> list[str]:
    if reason == "retry":
        return [
            f"{_count(terms, 'n_failed_rounds')} rounds failed",
            f"{_count(terms, 'rounds_since_pick')} picks ago, "
            f"after waiting for {_count(terms, 'backoff')}",
        ]
    if reason == "round_robin":
        return [f"{_count(terms, 'n_rounds')} rounds"]
    if reason not in ("gradient", "tvm", "epsilon"):
        return []
    # Tasks are ranked by gain over cost, and so is the runner-up.
    ranked = {"gain": (terms.get("gain") or 0.0) / (terms.get("cost") or 1.0)}
    parts = [f"gain {_ms(ranked, 'gain')} a round"]
    if terms.get("runner_up_gain") is not None:
        parts.append(f"the next best {_ms(terms, 'runner_up_gain')}")
    parts += _parts(terms)
    if terms.get("cost") is not None:
        parts.append(f"a trial costs {terms['cost']:.2g} of the average")
    return parts


def _parts(terms: Mapping[str, Any]) -> list[str]:
    weight = [f"weight {terms['objective_weight']:.4g}"] if terms.get("objective_weight") else []
    roof = [f"roof {_ms(terms, 'roof')} a call"] if terms.get("roof") else []
    return [
        f"recent slope {_ms(terms, 'backward')} a round",
        f"hope {_ms(terms, 'optimistic')}",
        f"step to what similar tasks reach {_ms(terms, 'similarity')}",
        *roof,
        *weight,
    ]


def _ms(terms: Mapping[str, Any], name: str) -> str:
    value = terms.get(name)
    return "unknown" if value is None else f"{short_milliseconds(value)} ms"


def _count(terms: Mapping[str, Any], name: str) -> str:
    value = terms.get(name)
    return "unknown" if value is None else f"{value:.0f}"
