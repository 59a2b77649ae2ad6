"""Several ranks over gloo, forked once for all that is to be run on them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def on_ranks(world_size: int, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(*arguments)`` in forked processes with one process group; the first error of any is raised here.

    Args:
        world_size: How many.
        folder: Where they find each other: by a file, so that no port can be taken.
        work: What each does.
        arguments: Arguments of ``work``.
    """
    torch.multiprocessing.start_processes(
        _rank, (world_size, folder / "group", work, arguments), nprocs=world_size, start_method="fork"
    )


def _rank(rank: int, world_size: int, file: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ["LOCAL_RANK"] = str(rank)  # by which Lightning knows that it need not start the others
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size)
    work(*arguments)
    dist.destroy_process_group()


def trainer(**arguments: Any) -> Trainer:
    """Return a Trainer for the process group that is there, or for this process alone."""
    if dist.is_initialized():
        group = {"strategy": "ddp", "devices": dist.get_world_size(), "plugins": [LightningEnvironment()]}
        arguments = {**group, **arguments}
    return Trainer(**{**QUIET, **arguments})
