"""Signals raised as exceptions, at once or at the next wait."""

import os
import signal

import pytest

from tuner.interrupts import Interrupted, interruptible, raise_if_interrupted, waiting


def interrupt(number: signal.Signals) -> None:
    """Send a signal to this process and fail if it has no effect."""
    os.kill(os.getpid(), number)
    pytest.fail("the signal had no effect")


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_is_raised_at_once(number: signal.Signals, exit_code: int) -> None:
    """The earlier handlers are restored."""
    before = signal.getsignal(number)

    with pytest.raises(Interrupted, match="run the same command") as caught, interruptible():
        interrupt(number)

    assert caught.value.exit_code == exit_code
    assert signal.getsignal(number) is before


def test_signal_outside_a_wait_is_raised_at_the_next() -> None:
    """Work between two waits runs to its end."""
    done = []

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        done.append("work")
        with waiting():
            done.append("wait")

    with pytest.raises(Interrupted), interruptible(only_waiting=True):
        work()
    assert done == ["work"]


def test_signal_ends_a_wait() -> None:
    """A wait is interrupted at once."""
    with pytest.raises(Interrupted), interruptible(only_waiting=True), waiting():
        interrupt(signal.SIGTERM)


def test_signal_after_the_last_wait_changes_nothing() -> None:
    """The work ends normally, and later work does not see the signal."""
    with interruptible(only_waiting=True):
        os.kill(os.getpid(), signal.SIGINT)
    with waiting():
        pass


def test_an_interrupt_that_another_error_replaced_is_raised_on_request() -> None:
    """It is raised again on every request until the work has ended."""
    with interruptible():
        raise_if_interrupted()
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            raise_if_interrupted()
    raise_if_interrupted()
