"""The randomness of a worker thread: its torch generator and its worker info."""

from __future__ import annotations

import os
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data._utils import worker as torch_worker

from lit_loader.seeding.draw_modes import ThreadDraws
from lit_loader.seeding.generators import WorkerRng, context, worker_key
from lit_loader.seeding.keys import EpochKeys, RngPurpose


class ThreadScope:
    """Context in which torch draws from a CPU generator of this thread: see NOTE [Draws in worker threads].

    Args:
        seed: Seeds the generator for draws without a key, as a worker process with that seed would draw.

    Runs in: the thread that creates it. A process forked from there draws from torch's default generator again.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator()
        self._generator.manual_seed(seed)
        self._draws = ThreadDraws()
        # The new generator has not been seeded for any key.
        context.seeded_for = None

    def __enter__(self) -> Self:
        # lit_loader's own draws read the generator here; the mode passes it to all others.
        context.generator = self._generator
        self._draws.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._draws.__exit__(*exc_info)  # type: ignore[no-untyped-call]
        context.generator = None

    @staticmethod
    def seed_for(keys: EpochKeys, purpose: RngPurpose, a: int, b: int = 0) -> None:
        """Seed the thread's generators from the key for a purpose, at the next draw."""
        context.key_parts = (keys, purpose, a, b)


def rand(*size: int) -> Tensor:
    """Draw what ``torch.rand`` draws on the CPU, in a worker thread from its own generator."""
    generator = context.present_generator()
    # The thread's mode would pass the same generator, in six times the time.
    with torch._C.DisableTorchFunction():
        return torch.rand(size, device="cpu", generator=generator)


def get_worker_info() -> Any:
    """Return torch's ``WorkerInfo`` of the worker that calls this, or None outside of workers.

    Works in worker processes and worker threads. torch's function of that name knows one worker for each process, so
    it returns None in a worker thread.
    """
    return context.worker_info or torch_worker.get_worker_info()


def set_worker_info(worker_id: int, num_workers: int, *, base_seed: int, dataset: Any) -> None:
    """Let `get_worker_info` return this worker's info in the calling thread."""
    key = worker_key(base_seed, worker_id)
    # Older versions of torch have fewer fields.
    fields = {"id": worker_id, "num_workers": num_workers, "seed": key.torch, "dataset": dataset}
    if "rng" in getattr(torch_worker.WorkerInfo, "__dataclass_fields__", ()):  # since torch 2.14
        fields |= {"rng": WorkerRng(key), "worker_method": "thread"}
    context.worker_info = torch_worker.WorkerInfo(**fields)


def _after_fork() -> None:
    """Make a fork of a worker thread a process without workers."""
    context.generator = None
    context.worker_info = None


if hasattr(os, "register_at_fork"):  # a platform without it has no fork
    os.register_at_fork(after_in_child=_after_fork)
