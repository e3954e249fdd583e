"""Say which value the scheduler refused.

SchedulerError (a ValueError)
└── UnknownObjectiveError
"""


class SchedulerError(ValueError):
    """A table, a setting or a budget that makes no sense; the message holds the value."""


class UnknownObjectiveError(SchedulerError):
    """No objective is registered under the name asked for."""
