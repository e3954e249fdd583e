"""A profile as a page that stands alone: no script, no font and no image from elsewhere."""

from functools import lru_cache

from jinja2 import Environment, PackageLoader, Template

from tuner.formatting import milliseconds, percent
from tuner.profiling.results import LibraryProfile

# A call that is shorter than this share of the run is not labelled in the chart.
_MIN_LABEL = 0.03


def as_page(profile: LibraryProfile) -> str:
    """Return the page: the calls of a run on a time axis, and a table of the subgraphs."""
    kinds = {kernel.workload: kernel.verdict.kind for kernel in profile.kernels}
    secs = sum(call.secs + max(call.gap_secs, 0.0) for call in profile.calls) or 1.0
    bars, start = [], 0.0
    for call in profile.calls:
        start += max(call.gap_secs, 0.0)
        share = call.secs / secs
        bars.append(
            {
                "left": start / secs,
                "width": share,
                "kind": kinds[call.workload],
                "label": call.name if share >= _MIN_LABEL else "",
                "title": f"{call.name}: {milliseconds(call.secs)} ms",
            }
        )
        start += call.secs
    return _template().render(profile=profile, bars=bars)


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("tuner.profiling", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"milliseconds": milliseconds, "percent": percent}
    return environment.get_template("page.html")
