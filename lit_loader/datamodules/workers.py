"""Worker settings of a data module, and the number of workers that fits a host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.multiprocessing
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from lit_loader.datamodules.keywords import check_at_least, check_types
from lit_loader.engine import WorkerMethod
from lit_loader.errors import SettingError
from lit_loader.foundation.host import PROCESS_BYTES, THREAD_BYTES, decide_num_workers, read_resources
from lit_loader.loader.arguments import check_replacement

__all__ = ["NumWorkers", "WorkerSettings", "auto_num_workers"]

NumWorkers: TypeAlias = int | Literal["auto"]
"""Number of workers of a loader, or ``"auto"`` to let this host decide."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Workers of each loader of a data module, and the transfer of batches to the device.

    Args:
        num_workers: Workers of each loader. With 0 the other worker settings are checked and have no effect, so that
            this setting alone switches workers off and on. With ``"auto"`` the first loader decides the number from the
            cores, quota and memory of this host and the trainer's ranks on it, and logs the reason; the setting stays
            ``"auto"``, and `LoaderDataModule.num_workers_of_loaders` is the number.
        worker_method: ``"multiprocessing"`` for worker processes, ``"thread"`` for threads of this process.
        prefetch_factor: Batches that each worker makes ahead, or None for torch's default.
        persistent_workers: True to keep workers from epoch to epoch, or None to do so if there are any.
        multiprocessing_context: Start method of worker processes, or None for the platform's default.
        max_worker_restarts: Maximum number of dead worker processes that are replaced in an epoch, see
            `lit_loader.DataLoader`, or None for 3.
        hang_timeout_s: Seconds a worker process may take for one sample before it is replaced, or None for no limit.
        pin_memory: True to page-lock batches, or None to do so if the trainer has an accelerator that copies from
            page-locked memory: not on MPS, and not without a trainer.
        prefetch_to_device: True to copy the next batch to the trainer's device while the current batch is used, so that
            Lightning has nothing to transfer, or None to do so if that device is an accelerator. On a CPU nothing is
            copied.
        timeout: Seconds to wait for a batch from workers; 0 for no limit.

    Raises:
        ValueError: If a setting is out of range, or contradicts another.
        TypeError: If a setting has a wrong type.
    """

    num_workers: NumWorkers = 0
    worker_method: WorkerMethod = "multiprocessing"
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    multiprocessing_context: str | None = None
    max_worker_restarts: int | None = None
    hang_timeout_s: float | None = None
    pin_memory: bool | None = None
    prefetch_to_device: bool | None = None
    timeout: float = 0.0

    def __post_init__(self) -> None:
        # A config or a command line may pass any value, and a dataclass does not check types.
        check_types(type(self), vars(self))
        check_at_least(0, num_workers=self.num_workers, timeout=self.timeout)
        check_at_least(1, prefetch_factor=self.prefetch_factor)
        # A wrong name would otherwise fail when the first loader starts its workers.
        start_methods = torch.multiprocessing.get_all_start_methods()
        if self.multiprocessing_context not in (None, *start_methods):
            raise ValueError(f"multiprocessing_context={self.multiprocessing_context!r} is not one of {start_methods}")
        for name in ("multiprocessing_context", "max_worker_restarts", "hang_timeout_s"):
            # A setting without effect would hide a misunderstanding. max_worker_restarts=0 is true of threads.
            if self.worker_method == "thread" and getattr(self, name) not in (None, 0):
                rule = "needs worker processes, and worker_method='thread' has none"
                alternatives = {"worker_method": "multiprocessing"}
                raise SettingError(name, getattr(self, name), rule, "leave it out", settings=alternatives)
        check_replacement(self.max_worker_restarts, self.hang_timeout_s, processes=True, keyed=True)

    def loader_arguments(self, num_workers: int) -> dict[str, Any]:
        """Return the worker arguments of a loader with ``num_workers`` workers."""
        # torch refuses most of the others without workers.
        if num_workers == 0:
            return {"num_workers": 0}
        arguments = asdict(self)
        # The data module decides these two by the trainer's device.
        del arguments["pin_memory"]
        del arguments["prefetch_to_device"]
        arguments["num_workers"] = num_workers
        arguments["persistent_workers"] = self.persistent_workers is not False
        return arguments


def auto_num_workers(decided: dict[Any, int], trainer: Trainer | None, worker_method: WorkerMethod) -> int:
    """Return the number of workers for ``num_workers="auto"``, and log the reason when it is decided.

    Args:
        decided: Earlier decisions by number of ranks and kind of device; this call adds to it. A data module may be
            used before a trainer has it, and the trainer may have other ranks.
        trainer: The trainer whose ranks share this host, or None to read the launcher's variables and the host.
        worker_method: Kind of the workers; threads take less memory than processes.
    """
    if trainer is None:
        ranks = None
        accelerated = torch.accelerator.is_available()
    else:
        ranks = trainer.num_devices
        accelerated = trainer.strategy.root_device.type != "cpu"
    if (ranks, accelerated) not in decided:
        resources = read_resources(ranks_on_host=ranks, has_accelerator=accelerated)
        worker_bytes = THREAD_BYTES if worker_method == "thread" else PROCESS_BYTES
        decided[ranks, accelerated], reason = decide_num_workers(resources, worker_bytes=worker_bytes)
        rank_zero_info(reason)
    return decided[ranks, accelerated]
