"""The rules by which operators take and give layouts: one entry per operator.

An operator without an entry gets its operands as the network sees them.
"""

from tuner.engines.relax.graph.layout.rules import axes, elementwise, products, shapes, windows
from tuner.engines.relax.graph.layout.scope import Rule

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **shapes.RULES,
    **axes.RULES,
    **windows.RULES,
    **products.RULES,
}
