"""What compiling a library anew from its manifest came to, as it is reported."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tuner.cli.console import stderr_console, stdout_console

if TYPE_CHECKING:
    from tuner.compile.reproduce import Remade, Reproduced

_STYLES = {"identical": "green", "differs": "red", "cannot": "yellow"}


@dataclass(frozen=True)
class Reproduction:
    """Objects that were compiled anew; the work failed unless all are ``identical``."""

    result: "Reproduced"

    @property
    def identical(self) -> bool:
        """Whether every object has the bytes that the manifest says."""
        return self.result.identical

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints of it."""
        result = self.result
        return {
            "model": result.model,
            "target": result.target,
            "objects": None if result.out is None else str(result.out),
            "identical": result.n_identical,
            "differing": sum(1 for each in result.subgraphs if each.verdict == "differs"),
            "impossible": sum(1 for each in result.subgraphs if each.verdict == "cannot"),
            "subgraphs": [
                {**vars(each), "objects": dict(each.objects)} for each in result.subgraphs
            ],
        }

    def show(self) -> None:
        """Print it for people."""
        console = stdout_console()
        table = Table(title=f"Objects of {self.result.model}", title_justify="left")
        table.add_column("Workload", no_wrap=True)
        for name in ("Task", "Made from", "Result"):
            table.add_column(name)
        for each in self.result.subgraphs:
            made_from = "no trace" if each.trace is None else f"trace {each.trace[:12]}"
            said = each.verdict if not each.why else f"{each.verdict}: {each.why}"
            style = _STYLES[each.verdict]
            table.add_row(each.workload, Text(each.name), made_from, Text(said, style))
        console.print(table)
        n_all, kept = len(self.result.subgraphs), self.result.out
        console.print(
            f"{self.result.n_identical} of {n_all} subgraphs are byte-identical"
            + ("" if kept is None else f"; their objects are in {kept}"),
            highlight=False,
        )


def tell(remade: "Remade") -> None:
    """Say on stderr how one subgraph came out."""
    stderr_console().print(
        f"{remade.verdict.capitalize()}: {remade.name}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
