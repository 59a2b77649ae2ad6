"""Ctrl-C is held back while a block runs, and is never lost."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from lit_loader.foundation.interrupts import defer_interrupts


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def handler_restored():
    """Python's own handler, which a shell's background jobs do not have, before and after the test."""
    original_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, original_handler) is signal.default_int_handler


def test_interrupt_is_raised_at_end_of_block():
    steps = []
    with pytest.raises(KeyboardInterrupt):  # the block must run to its end
        with defer_interrupts():
            press_ctrl_c()
            steps.append("end of block")
        steps.append("after block")
    assert steps == ["end of block"]


def test_block_without_interrupt_raises_nothing():
    with defer_interrupts():
        pass


def test_interrupt_in_nested_block_is_raised_at_end_of_outer_block():
    steps = []
    with pytest.raises(KeyboardInterrupt), defer_interrupts():
        with defer_interrupts():
            press_ctrl_c()
        steps.append("end of outer block")
    assert steps == ["end of outer block"]


def test_error_in_block_is_context_of_interrupt():
    with pytest.raises(KeyboardInterrupt) as raised, defer_interrupts():
        press_ctrl_c()
        raise OSError("disk full")
    assert isinstance(raised.value.__context__, OSError)


def test_interrupt_in_callback_is_raised_after_it():
    steps = []

    class Finalized:
        def __del__(self):
            with defer_interrupts(in_callback=True):
                press_ctrl_c()
            steps.append("end of finalizer")

    with pytest.raises(KeyboardInterrupt):  # the interrupt comes some time after the finalizer
        del (finalized := [Finalized()])[0]
        assert finalized == []
        time.sleep(10)
    assert steps == ["end of finalizer"]


def test_other_threads_leave_handler_alone():
    handlers = []

    def run():
        with defer_interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT)]


def test_ignored_interrupt_stays_ignored():
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_interrupts():
            press_ctrl_c()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


def test_handler_set_in_block_stays():
    handler = signal.getsignal(signal.SIGINT)
    try:
        with defer_interrupts():
            signal.signal(signal.SIGINT, print)
        assert signal.getsignal(signal.SIGINT) is print
    finally:
        signal.signal(signal.SIGINT, handler)
