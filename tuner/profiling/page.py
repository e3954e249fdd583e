"""A profile as a page that stands alone."""

from dataclasses import dataclass

from tuner.formatting import by_variant, counted, milliseconds, percent
from tuner.profiling.results import CallProfile, LibraryProfile
from tuner.profiling.verdicts import MEANINGS
from tuner.reporting.pages import template

# A call that is shorter than this share of the run is not labelled in the chart.
_MIN_LABEL = 0.03


@dataclass(frozen=True)
class Bar:
    """A call on the time axis.

    Attributes:
        left: Start, as a share of the axis.
        width: Duration, as a share of the axis.
        kind: Kind of the verdict on its subgraph.
        label: Name; empty if the bar is too short for it.
        title: Name, duration and nodes.
    """

    left: float
    width: float
    kind: str
    label: str
    title: str


def as_page(profile: LibraryProfile) -> str:
    """Return the page: the calls of a run on a time axis, and a table of the subgraphs."""
    peer_secs = [profile.peer_secs(peer) for peer in profile.peers]
    page = template(
        "tuner.profiling",
        "profile.html",
        milliseconds=milliseconds,
        percent=percent,
        by_variant=by_variant,
        counted=counted,
    )
    return page.render(profile=profile, bars=bars_of(profile), peer_secs=peer_secs, kinds=MEANINGS)


def bars_of(profile: LibraryProfile) -> list[Bar]:
    """Return the calls of a run as bars, one after the other."""
    kinds = {kernel.workload: kernel.verdict.kind for kernel in profile.kernels}
    secs = sum(call.secs + max(call.gap_secs, 0.0) for call in profile.calls) or 1.0
    bars, start = [], 0.0
    for call in profile.calls:
        start += max(call.gap_secs, 0.0)
        share = call.secs / secs
        label = call.name if share >= _MIN_LABEL else ""
        bars.append(Bar(start / secs, share, kinds[call.workload], label, _title(call)))
        start += call.secs
    return bars


def _title(call: CallProfile) -> str:
    nodes = f": {', '.join(call.nodes)}" if call.nodes else ""
    return f"{call.name}, {milliseconds(call.secs)} ms{nodes}"
