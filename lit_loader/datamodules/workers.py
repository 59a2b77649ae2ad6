"""Worker settings of a data module: checked when given, made loader arguments when a loader is built."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import torch
import torch.multiprocessing
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from lit_loader.arguments import check_replacement
from lit_loader.engine import WorkerMethod
from lit_loader.resources import PROCESS_BYTES, THREAD_BYTES, decide_num_workers, read_resources

__all__ = [
    "AutoWorkers",
    "NumWorkers",
    "check_worker_settings",
    "loader_arguments",
]

NumWorkers: TypeAlias = int | Literal["auto"]
"""How many workers a loader has, or that this host decides."""

_METHODS: Final = ("multiprocessing", "thread")


def check_worker_settings(
    *,
    num_workers: NumWorkers,
    prefetch_factor: int | None,
    multiprocessing_context: str | None,
    timeout: float,
    worker_method: str,
    max_worker_restarts: int | None,
    hang_timeout_s: float | None,
) -> None:
    """Refuse worker settings that no loader takes, whatever the number of workers turns out to be.

    Raises:
        ValueError: If a setting is out of range, or has no meaning beside another.
    """
    if isinstance(num_workers, str) and num_workers != "auto":
        raise ValueError(f"num_workers={num_workers!r} must be a number, or 'auto' to let the host decide")
    if worker_method not in _METHODS:
        raise ValueError(f"worker_method={worker_method!r} is not one of {list(_METHODS)}")
    start_methods = torch.multiprocessing.get_all_start_methods()
    if multiprocessing_context is not None and multiprocessing_context not in start_methods:
        raise ValueError(f"multiprocessing_context={multiprocessing_context!r} is not one of {start_methods}")
    if multiprocessing_context is not None and worker_method == "thread":
        raise ValueError(
            f"multiprocessing_context={multiprocessing_context!r} starts processes and worker_method='thread' "
            "has none; leave it out, or give worker_method='multiprocessing'"
        )
    if (max_worker_restarts or hang_timeout_s is not None) and worker_method == "thread":
        raise ValueError(
            f"max_worker_restarts={max_worker_restarts} and hang_timeout_s={hang_timeout_s} are about worker "
            "processes, and worker_method='thread' has none; leave them out, or give worker_method='multiprocessing'"
        )
    check_replacement(max_worker_restarts, hang_timeout_s, processes=True, keyed=True)
    too_few = not isinstance(num_workers, str) and num_workers < 0
    if too_few or timeout < 0 or (prefetch_factor is not None and prefetch_factor < 1):
        raise ValueError(
            f"num_workers={num_workers} and timeout={timeout} must be at least 0, "
            f"prefetch_factor={prefetch_factor} at least 1 or None"
        )


def loader_arguments(
    num_workers: int,
    *,
    prefetch_factor: int | None,
    persistent_workers: bool | None,
    multiprocessing_context: str | None,
    timeout: float,
    worker_method: WorkerMethod,
    max_worker_restarts: int | None,
    hang_timeout_s: float | None,
) -> dict[str, Any]:
    """Return the arguments of a loader; without workers none of the settings has an effect."""
    if num_workers == 0:
        return {"num_workers": 0}
    return {
        "num_workers": num_workers,
        "prefetch_factor": prefetch_factor,
        "persistent_workers": True if persistent_workers is None else persistent_workers,
        "multiprocessing_context": multiprocessing_context,
        "timeout": timeout,
        "worker_method": worker_method,
        "max_worker_restarts": max_worker_restarts,
        "hang_timeout_s": hang_timeout_s,
    }


class AutoWorkers:
    """Decides ``num_workers="auto"``, once for each place a data module finds itself in, and logs why.

    A place is the number of ranks on this host and whether there is an accelerator. Both may change once: a
    data module may be looked at before a trainer has it.
    """

    def __init__(self) -> None:
        self._decided: dict[tuple[int | None, bool, str], int] = {}

    def decide(self, trainer: Trainer | None, worker_method: WorkerMethod) -> int:
        """Return the number of workers of each loader.

        Args:
            trainer: Whose devices share this host; None: as the launcher says, and what accelerator there is.
            worker_method: Whether workers are processes or threads, which take less memory.
        """
        ranks, accelerated = _place(trainer)
        key = (ranks, accelerated, worker_method)
        if key not in self._decided:
            resources = read_resources(ranks_on_host=ranks, has_accelerator=accelerated)
            worker_bytes = THREAD_BYTES if worker_method == "thread" else PROCESS_BYTES
            self._decided[key], why = decide_num_workers(resources, worker_bytes=worker_bytes)
            rank_zero_info(why)
        return self._decided[key]


def _place(trainer: Trainer | None) -> tuple[int | None, bool]:
    """Return how many ranks a trainer has on this host (None: not known), and whether it has an accelerator."""
    if trainer is None:
        return None, torch.accelerator.is_available()
    return trainer.num_devices, trainer.strategy.root_device.type != "cpu"
