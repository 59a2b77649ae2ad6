"""Lightning's own handling of a loader, with a rank and a world size but without processes."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from lightning.fabric.utilities.data import _replace_dunder_methods
from lightning.pytorch.trainer.connectors.data_connector import (
    _DataConnector,
    _process_dataloader,
    _resolve_overfit_batches,
)
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader

FUNCTIONS = {
    RunningStage.TRAINING: TrainerFn.FITTING,
    RunningStage.VALIDATING: TrainerFn.VALIDATING,
    RunningStage.TESTING: TrainerFn.TESTING,
    RunningStage.PREDICTING: TrainerFn.PREDICTING,
}


def as_lightning(
    make: Any,
    stage: RunningStage = RunningStage.TRAINING,
    *,
    rank: int = 0,
    world_size: int = 2,
    use_distributed_sampler: bool = True,
    in_hook: bool = True,
    overfit_batches: int = 0,
    epoch: int = 0,
) -> Any:
    """Return what Lightning iterates for the loader that ``make()`` returns.

    Args:
        make: Makes the loader.
        stage: The stage of the loader.
        rank: The rank that handles it.
        world_size: 1: not distributed.
        use_distributed_sampler: As the Trainer's.
        in_hook: Whether ``make`` is called as a ``*_dataloader`` hook, where Lightning takes down all arguments.
        overfit_batches: As the Trainer's.
        epoch: The Trainer's.
    """
    trainer: Any = SimpleNamespace(
        _accelerator_connector=SimpleNamespace(
            use_distributed_sampler=use_distributed_sampler, is_distributed=world_size > 1
        ),
        distributed_sampler_kwargs={"num_replicas": world_size, "rank": rank},
        overfit_batches=overfit_batches,
        state=SimpleNamespace(fn=FUNCTIONS[stage]),
        strategy=SimpleNamespace(process_dataloader=lambda loader: loader),
        num_devices=1,
        global_rank=rank,
        reload_dataloaders_every_n_epochs=0,
        fit_loop=SimpleNamespace(epoch_progress=SimpleNamespace(current=SimpleNamespace(processed=epoch))),
    )
    trainer._data_connector = _DataConnector(trainer)
    with ExitStack() as hook:
        if in_hook:
            hook.enter_context(_replace_dunder_methods(TorchDataLoader, "dataset"))
            hook.enter_context(_replace_dunder_methods(BatchSampler))
        loader = make()
    if overfit_batches:
        combined = CombinedLoader(loader, "max_size_cycle")
        _resolve_overfit_batches(combined, mode=stage)
        (loader,) = combined.flattened
    return _process_dataloader(trainer, FUNCTIONS[stage], stage, loader)
