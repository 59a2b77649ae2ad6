"""Functions in a fork of this process."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable

__all__ = ["exit_code_of_fork"]


def exit_code_of_fork(function: Callable[[], bool]) -> int:
    """Call a function in a fork.

    Returns:
        0 if the function returned True, 1 if it returned False or raised an error, and minus the number of the signal
        that killed the fork.
    """
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(0 if function() else 1))
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    assert code is not None
    return code
