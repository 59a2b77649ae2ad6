"""Forks of a process that has workers: the workers are not theirs to end.

Problem: multiprocessing, which knows of no fork but its own, has the list of its children in a fork too, and when its
interpreter exits it terminates all that are daemons. Mechanism: a fork takes the workers off the list.
"""

from __future__ import annotations

import multiprocessing.process
import os
from functools import cache

__all__ = ["WORKER_NAME", "disown_workers_in_forks"]

WORKER_NAME = "lit_loader-worker"


@cache
def disown_workers_in_forks() -> None:
    """Let no fork of this process end its workers."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_disown)


def _disown() -> None:
    children: set[multiprocessing.process.BaseProcess] = getattr(multiprocessing.process, "_children", set())
    children -= {child for child in children if child.name.startswith(WORKER_NAME)}
