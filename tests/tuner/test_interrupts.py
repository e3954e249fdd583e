"""Signals as exceptions, at once or where something waits."""

import os
import signal

import pytest

from tuner.interrupts import Interrupted, interruptible, raise_if_asked, waiting


def interrupt(number: signal.Signals) -> None:
    """Send this process a signal that must not be survived."""
    os.kill(os.getpid(), number)
    pytest.fail("went on")


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_is_raised_at_once(number: signal.Signals, exit_code: int) -> None:
    """Whatever runs is interrupted, and the handlers of before come back."""
    before = signal.getsignal(number)

    with pytest.raises(Interrupted, match="run the same command") as caught, interruptible():
        interrupt(number)

    assert caught.value.exit_code == exit_code
    assert signal.getsignal(number) is before


def test_signal_outside_a_wait_is_raised_at_the_next() -> None:
    """Work between two waits is done to its end."""
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
    """What waits is interrupted where it is."""
    with pytest.raises(Interrupted), interruptible(only_waiting=True), waiting():
        interrupt(signal.SIGTERM)


def test_signal_after_the_last_wait_changes_nothing() -> None:
    """Work that ends anyway ends well, and leaves no signal for later work."""
    with interruptible(only_waiting=True):
        os.kill(os.getpid(), signal.SIGINT)
    with waiting():
        pass


def test_an_interrupt_whose_place_another_error_took_is_not_forgotten() -> None:
    """It is raised again where somebody asks, until the work has ended."""
    with interruptible():
        raise_if_asked()
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            raise_if_asked()
    raise_if_asked()
