"""Ctrl-C in a finalizer, where Python prints what is raised and loses it."""

from __future__ import annotations

import signal
import threading

__all__ = ["interrupt_again"]

_AGAIN_S = 0.01


def interrupt_again() -> None:
    """Have the Ctrl-C that a finalizer caught come again, when the finalizer is over."""
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(_AGAIN_S, signal.pthread_kill, (main, signal.SIGINT)).start()
