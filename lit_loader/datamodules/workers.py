"""Worker settings of a data module, and the number of workers that a host has room for."""

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
"""How many workers a loader has, or that this host decides."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Workers of each loader of a data module, and the way of its batches to the device.

    Args:
        num_workers: Workers of each loader. With 0 the other worker settings are checked and have no effect, so
            that this one setting switches workers off and on. ``"auto"``: decided when the first loader is made,
            from the cores, quota and memory of this host and the trainer's ranks on it, and logged with the
            reason; the setting stays ``"auto"``, `LoaderDataModule.num_workers_of_loaders` is the number.
        worker_method: ``"multiprocessing"``: workers are processes, ``"thread"``: threads of this one.
        prefetch_factor: Batches that each worker makes ahead, or None for torch's default.
        persistent_workers: Keep workers from epoch to epoch, or None to do so if there are any.
        multiprocessing_context: Start method of worker processes, or None for the platform's.
        max_worker_restarts: How many worker processes that ended are replaced in an epoch, see `lit_loader.DataLoader`,
            or None for 3.
        hang_timeout_s: Seconds that a worker process may be at one sample before it is replaced, or None for no limit.
        pin_memory: Page-lock batches, or None to do so if the trainer has an accelerator that copies from page-locked
            memory: not on MPS, and not without a trainer.
        prefetch_to_device: Copy the next batch to the trainer's device while this one is used, so that Lightning's
            own transfer finds it there, or None to do so if that device is an accelerator. On a CPU nothing is copied.
        timeout: Seconds to wait for a batch from workers; 0 for no limit.

    Raises:
        ValueError: If a setting is out of range, or has no meaning beside another.
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
        check_types(type(self), vars(self))
        check_at_least(0, num_workers=self.num_workers, timeout=self.timeout)
        check_at_least(1, prefetch_factor=self.prefetch_factor)
        start_methods = torch.multiprocessing.get_all_start_methods()
        if self.multiprocessing_context not in (None, *start_methods):
            raise ValueError(
                f"multiprocessing_context={self.multiprocessing_context!r} is not one of {start_methods}"
            )
        for name in ("multiprocessing_context", "max_worker_restarts", "hang_timeout_s"):
            if self.worker_method == "thread" and getattr(self, name) not in (None, 0):
                rule = "needs worker processes, and worker_method='thread' has none"
                alternatives = {"worker_method": "multiprocessing"}
                raise SettingError(name, getattr(self, name), rule, "leave it out", settings=alternatives)
        check_replacement(self.max_worker_restarts, self.hang_timeout_s, processes=True, keyed=True)

    def loader_arguments(self, num_workers: int) -> dict[str, Any]:
        """Return the arguments of a loader with ``num_workers`` workers, 0: those that say so."""
        if num_workers == 0:
            return {"num_workers": 0}
        given = asdict(self)
        del given["pin_memory"], given["prefetch_to_device"]
        return {
            **given,
            "num_workers": num_workers,
            "persistent_workers": self.persistent_workers is not False,
        }


def auto_num_workers(decided: dict[Any, int], trainer: Trainer | None, worker_method: WorkerMethod) -> int:
    """Return what ``num_workers="auto"`` is, and log why when it is decided.

    Args:
        decided: What was decided before, for each number of ranks and device: a data module may be looked at before a
            trainer has it.
        trainer: Whose devices share this host, or None for what the launcher's variables and the host show.
        worker_method: Whether workers are processes or threads, which take less memory.
    """
    ranks, accelerated = None, torch.accelerator.is_available()
    if trainer is not None:
        ranks, accelerated = trainer.num_devices, trainer.strategy.root_device.type != "cpu"
    if (ranks, accelerated) not in decided:
        resources = read_resources(ranks_on_host=ranks, has_accelerator=accelerated)
        worker_bytes = THREAD_BYTES if worker_method == "thread" else PROCESS_BYTES
        decided[ranks, accelerated], why = decide_num_workers(resources, worker_bytes=worker_bytes)
        rank_zero_info(why)
    return decided[ranks, accelerated]
