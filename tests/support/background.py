"""Functions that run in threads while a test does something else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def running(*functions: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run functions in threads during a block; at its end set the event that each has got, and wait for them."""
    stop = threading.Event()
    threads = [threading.Thread(target=function, args=(stop,)) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
