"""Errors of the scheduler.

SchedulerError (a ValueError)
└── UnknownObjectiveError
"""


class SchedulerError(ValueError):
    """A table, a setting or a budget is invalid; the message contains the value."""


class UnknownObjectiveError(SchedulerError):
    """No objective is registered under the requested name."""
