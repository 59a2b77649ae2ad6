"""Schemas of the run itself: the root, the workers, the trainer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Union

__all__ = ["RootConfig", "TrainerConfig", "WorkersConfig"]


@dataclass
class RootConfig:
    """Keys of ``conf/train.yaml`` that are in no group."""

    seed: Optional[int] = None
    num_threads: int = 1
    show_progress: bool = True


@dataclass
class WorkersConfig:
    """Keys of the ``workers`` group: worker settings of ``lit_loader.datamodules.LoaderDataModule``.

    ``words`` are the only texts that a key takes; OmegaConf knows no ``Literal``.
    """

    num_workers: Union[int, str] = field(default=0, metadata={"words": ("auto",)})
    worker_method: str = field(default="multiprocessing", metadata={"words": ("multiprocessing", "thread")})
    prefetch_factor: Optional[int] = None
    persistent_workers: Optional[bool] = None
    multiprocessing_context: Optional[str] = None
    max_worker_restarts: Optional[int] = None
    hang_timeout_s: Optional[float] = None
    pin_memory: Optional[bool] = None
    prefetch_to_device: Optional[bool] = None
    timeout: float = 0.0


@dataclass
class TrainerConfig:
    """The keys of Lightning's ``Trainer`` that are often set; others may be added with ``+trainer.KEY=``."""

    accelerator: str = "auto"
    devices: Any = "auto"
    strategy: str = "auto"
    num_nodes: int = 1
    precision: Any = None
    max_epochs: Optional[int] = None
    max_steps: int = -1
    limit_train_batches: Optional[Union[int, float]] = None
    limit_val_batches: Optional[Union[int, float]] = None
    limit_test_batches: Optional[Union[int, float]] = None
    val_check_interval: Optional[Union[int, float]] = None
    check_val_every_n_epoch: Optional[int] = 1
    num_sanity_val_steps: Optional[int] = None
    gradient_clip_val: Optional[float] = None
    accumulate_grad_batches: int = 1
    log_every_n_steps: Optional[int] = None
    deterministic: Any = None
    use_distributed_sampler: bool = True
