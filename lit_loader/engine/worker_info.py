"""torch's ``get_worker_info()`` in worker threads: each thread has an answer of its own.

Problem: torch's function returns a global of its module, and everybody imports the function by name, so it can
be replaced nowhere. Mechanism: its code object is exchanged, once, when the first worker thread starts, for one
that looks in a ``threading.local`` first and otherwise answers as before. Never at import.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from torch.utils.data._utils import worker as torch_worker

__all__ = ["set_thread_worker_info"]

_NAME = "_lit_loader_thread_info"  # a global of torch's module from then on
_lock = threading.Lock()


def _answer() -> Any:
    # runs with the globals of torch's module
    return getattr(_lit_loader_thread_info, "info", None) or _worker_info  # type: ignore[name-defined] # noqa: F821


def _forget() -> None:
    """In a process forked from a worker thread, torch's global answers: it may be a worker process."""
    global _lock
    _lock = threading.Lock()  # of a thread that did not come along, perhaps
    getattr(torch_worker, _NAME).info = None


def set_thread_worker_info(**fields: Any) -> None:
    """Let ``get_worker_info()`` answer with these fields in the calling thread; those that torch lacks are left out.

    Args:
        fields: ``id``, ``num_workers``, ``seed``, ``dataset``, ``rng``, ``worker_method``.
    """
    with _lock:
        if not hasattr(torch_worker, _NAME):
            setattr(torch_worker, _NAME, threading.local())
            torch_worker.get_worker_info.__code__ = _answer.__code__
            os.register_at_fork(after_in_child=_forget)
    known = getattr(torch_worker.WorkerInfo, "__dataclass_fields__", None)
    if known is None:  # earlier versions take any keyword
        known = dict.fromkeys(("id", "num_workers", "seed", "dataset"))
    info: Any = torch_worker.WorkerInfo(**{name: value for name, value in fields.items() if name in known})
    getattr(torch_worker, _NAME).info = info
