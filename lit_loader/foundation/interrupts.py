"""Handling Ctrl-C where it must not cut a step in two, and in callbacks, where Python would lose it.

NOTE [Interrupts]
    Python runs signal handlers in the main thread, between any two bytecodes, so a KeyboardInterrupt may be raised
    between a system call and the statement that stores its result. `defer_interrupts` moves it to the end of a block.
    It replaces the handler for that time. Blocking the signal in the main thread would not do: the kernel would give
    it to another thread, and Python would still run the handler in the main one.
    Replacing the handler takes a few microseconds, so it is meant for rare steps (mapping memory, forking). Code that
    runs for every batch instead orders its statements so that an exception between any two of them does no harm.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

__all__ = ["defer_interrupts", "end_process", "interrupt_again"]

_DELAY_S = 0.01


@contextlib.contextmanager
def defer_interrupts(*, in_callback: bool = False) -> Iterator[None]:
    """Hold back Ctrl-C while a block runs, and raise it at the end of the block; see NOTE [Interrupts].

    Only SIGINT is held back, and only if it has a handler in Python. Blocks may be nested. In other threads than the
    main one this does nothing, because no handler runs there.

    Args:
        in_callback: Raise it shortly after the block instead, by `interrupt_again`. For finalizers and fork hooks.
    """
    handler = signal.getsignal(signal.SIGINT)
    # SIG_IGN and SIG_DFL raise nothing here, and a handler that was not set from Python could not be restored.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    num_interrupts = 0

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal num_interrupts
        num_interrupts += 1

    try:
        signal.signal(signal.SIGINT, count)
        yield
    finally:
        # Code in the block may have set another handler for SIGINT, which then stays.
        current = signal.signal(signal.SIGINT, handler)
        if current is not count:
            signal.signal(signal.SIGINT, current)
        if num_interrupts and in_callback:
            interrupt_again()
        elif num_interrupts:
            signal.raise_signal(signal.SIGINT)


def interrupt_again() -> None:
    """Raise KeyboardInterrupt in the main thread shortly after a callback that has caught one.

    Python prints and drops an exception that leaves a finalizer, a weak reference's callback or a fork hook.
    """
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(_DELAY_S, signal.pthread_kill, (main, signal.SIGINT)).start()


def end_process(code: int) -> NoReturn:
    """End this process at once: without finalizers, and without waiting for threads.

    Args:
        code: The exit code.
    """
    os._exit(code)
