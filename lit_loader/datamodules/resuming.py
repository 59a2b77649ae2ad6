"""Resuming a training run: the states of its loaders, saved and loaded at the right moment.

All use of private state of Lightning's loops by the data modules is here; it was written for Lightning 2.6.

NOTE [What Lightning leaves out]
    Lightning saves and loads the states of training loaders itself, but (2.6)
    - it loads none if ``trainer.estimated_stepping_batches`` was read in ``configure_optimizers``;
    - it counts a batch that was fetched and not trained on: the one its fetcher holds of a loader without a length, and
      the one of a step that raised;
    - it takes a state saved at ``limit_train_batches`` for one in the middle of an epoch: only samplers of
      lit_loader get the next epoch;
    - under ``CombinedLoader(mode="max_size")`` it begins a loader again that had ended before the others;
    - with ``max_steps``, or saved as an epoch begins, a checkpoint between two epochs gives an epoch of one batch;
    - it takes the epoch in whose middle ``max_steps`` ended training for a whole one.
    So states are loaded once more when training starts, before the first batch, and these are put right.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.fit_loop import RestartStage
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info

from lit_loader.loader import DataLoader

__all__ = [
    "ResumeStates",
    "held_loaders",
    "num_unused_batches",
    "resume_with",
    "saved_states",
    "train_loaders",
]

_LOOPS = ("fit_loop", "fit_loop.epoch_loop.val_loop", "validate_loop", "test_loop", "predict_loop")


def held_loaders(trainer: Trainer | None, loops: Sequence[str] = _LOOPS) -> Iterator[DataLoader[Any]]:
    """Yield the loaders of lit_loader that a trainer's loops hold: it makes its own copy for a prediction."""
    for path in () if trainer is None else loops:
        held = operator.attrgetter(path)(trainer)._combined_loader
        yield from (loader for loader in getattr(held, "flattened", ()) if isinstance(loader, DataLoader))


def train_loaders(trainer: Trainer | None) -> list[DataLoader[Any]]:
    """Return the training loaders of lit_loader that a trainer's fit loop holds, in its order."""
    return list(held_loaders(trainer, _LOOPS[:1]))


def num_unused_batches(trainer: Trainer) -> int:
    """Return how many batches the fit loop has fetched and not trained on."""
    fetcher = trainer.fit_loop._data_fetcher
    if isinstance(fetcher, _DataLoaderIterDataFetcher):  # the training step fetches by itself
        return 0
    held = 0 if fetcher is None else len(getattr(fetcher, "batches", ()))
    return held + _num_begun(trainer)


def _num_begun(trainer: Trainer) -> int:
    """Return 1 if a batch was given to the training step and the step is not over, else 0."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return int(batches.ready - batches.processed)


def saved_states(trainer: Trainer | None, num_unused: int | None = None) -> list[dict[str, Any]]:
    """Return the states of a trainer's training loaders, where the model is, not where they are.

    Args:
        trainer: Whose loaders, or None for no loaders.
        num_unused: See `num_unused_batches`, or None for its result now.
    """
    if trainer is None:
        return []
    unused = num_unused_batches(trainer) if num_unused is None else num_unused
    going, iterators = _going_on(trainer.fit_loop._combined_loader)
    pairs = zip(going, iterators, strict=False)
    ended = {id(loader) for loader, iterator in pairs if getattr(iterator, "_ended", True)}
    return [each.state_dict(num_held=0 if id(each) in ended else unused) for each in train_loaders(trainer)]


class ResumeStates(Callback):
    """Loads states into the training loaders that there are when training starts.

    Attributes:
        states: What is loaded then, once; a list as long as there are loaders of lit_loader.

    Raises:
        ValueError: At the start of training, if a state does not fit its loader, which has a seed.
    """

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the states; see NOTE [What Lightning leaves out]."""
        states, self.states = self.states, []
        if not states:
            return
        loaders = train_loaders(trainer)
        if len(loaders) != len(states):
            raise ValueError(
                f"the checkpoint holds states of {len(states)} training loaders and there are {len(loaders)}; give the "
                "loaders that it was saved with"
            )
        fit_loop = trainer.fit_loop
        batches: Any = fit_loop.epoch_loop.batch_progress
        _go_on_with_epoch(trainer)
        if _num_begun(trainer):
            batches.is_last_batch = False  # it comes again
        for loader, state in zip(loaders, states, strict=True):
            loader.load_state_dict(state)
            if batches.is_last_batch and state.get("position") and loader._slicing is None:
                loader.set_epoch(state["epoch"] + 1)
        after_batch = fit_loop.epoch_loop.restarted_on_train_batch_end
        if not (batches.is_last_batch and fit_loop.restarted_mid_epoch and not after_batch):
            assert fit_loop._data_fetcher is not None
            iter(fit_loop._data_fetcher)  # it may hold a batch from before
        if batches.current.processed > 0 and not batches.is_last_batch:
            going, iterators = _going_on(fit_loop._combined_loader)
            ended = [
                loader for loader, state in zip(loaders, states, strict=True) if state.get("position") == 0
            ]
            for number, loader in enumerate(going):
                if any(loader is each for each in ended):
                    iterators[number] = iter(())  # it had ended before the others
        _begin_whole_epoch(trainer)
        num_done = batches.current.processed if fit_loop.epoch_loop.restarting else 0
        rank_zero_info(
            f"Resumed in epoch {trainer.current_epoch}: {num_done} of its {fit_loop.max_batches} batches are done."
        )


def resume_with(trainer: Trainer, states: list[dict[str, Any]]) -> None:
    """Have a trainer load these states when training starts."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined] # Lightning sets it elsewhere
    resume = next((callback for callback in callbacks if isinstance(callback, ResumeStates)), None)
    if resume is None:
        resume = ResumeStates()
        callbacks.insert(0, resume)
    resume.states = states


def _going_on(combined: CombinedLoader | None) -> tuple[list[Any], list[Any]]:
    """Return loaders that go on after others have ended, and their iterators in the list that Lightning uses."""
    if combined is None or combined._mode != "max_size" or combined._iterator is None:
        return [], []
    return combined.flattened, combined._iterator.iterators


def _go_on_with_epoch(trainer: Trainer) -> None:
    """Take back the end of an epoch in whose middle ``max_steps`` ended training."""
    fit_loop = trainer.fit_loop
    batches: Any = fit_loop.epoch_loop.batch_progress
    epochs: Any = fit_loop.epoch_progress
    inside = 0 < batches.current.processed < fit_loop.max_batches and not batches.is_last_batch
    over = epochs.total.processed == epochs.total.started == epochs.total.ready
    if not (inside and over and fit_loop.epoch_loop.restarting):
        return
    for counts in (epochs.total, epochs.current):
        counts.processed -= 1
        counts.completed = counts.processed
    fit_loop._restart_stage = RestartStage.RESTARTED_MID_EPOCH


def _begin_whole_epoch(trainer: Trainer) -> None:
    """Let the epoch that comes next have all its batches, if the checkpoint was saved after the last one of another."""
    fit_loop = trainer.fit_loop
    epoch_loop = fit_loop.epoch_loop
    after_last = epoch_loop.batch_progress.is_last_batch and epoch_loop.restarted_on_train_batch_end
    if fit_loop.restarted_on_epoch_end:
        fit_loop.epoch_progress.increment_completed()
        fit_loop.reset_restart_stage()
    elif not fit_loop.restarted_on_epoch_start and not after_last:
        return
    elif after_last and epoch_loop.restarting and not epoch_loop._should_accumulate():
        epoch_loop._batches_that_stepped += 1  # as Lightning does where it goes on with an epoch
    epoch_loop.restarting = False
