"""Resuming a training run: the states of its loaders, saved and loaded at the right moment.

All use of private state of Lightning's loops by the data modules is here; it was written for Lightning 2.6.

NOTE [What Lightning leaves out]
    Lightning saves and loads the states of training loaders itself, but (2.6)
    - it loads none if ``trainer.estimated_stepping_batches`` was read in ``configure_optimizers``;
    - it counts a batch that was fetched and not trained on: the one its fetcher holds of a loader without a length, the
      one of a step that raised, and those of the loaders before one that ended or raised in a `CombinedLoader`;
    - it takes a state saved at ``limit_train_batches``, or where the shortest loader ended, for one in the middle of an
      epoch: only samplers of lit_loader get the next epoch;
    - under ``CombinedLoader(mode="max_size")`` it begins a loader again that had ended before the others, and under
      "max_size_cycle" it forgets which loaders it has begun again;
    - it sets the epoch of samplers after the first batch was fetched, of loaders without a length;
    - it forgets when it has reloaded the loaders;
    - with ``max_steps``, or saved as an epoch begins, a checkpoint between two epochs gives an epoch of one batch;
    - it takes the epoch in whose middle ``max_steps`` ended training for a whole one, and trains nothing if that was
      the last one of ``max_epochs``.
    So a checkpoint holds a `LoopPosition` beside the loaders' states, and states are loaded once more when training
    starts, before the first batch, and these are put right.
"""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.fetchers import _DataFetcher, _DataLoaderIterDataFetcher, _PrefetchDataFetcher
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info
from torch.utils.data import IterableDataset

from lit_loader.errors import ResumeWarning
from lit_loader.loader import DataLoader
from lit_loader.loader.iterator import LoaderIterator
from lit_loader.loader.resume import MAX_HELD, EpochState, check_state, next_epoch_state

__all__ = [
    "LoopPosition",
    "ResumeStates",
    "held_iterators",
    "held_loaders",
    "loop_position",
    "resume_with",
    "saved_states",
    "train_loaders",
]

_LOOPS = ("fit_loop", "fit_loop.epoch_loop.val_loop", "validate_loop", "test_loop", "predict_loop")


def held_loaders(trainer: Trainer | None, loops: Sequence[str] = _LOOPS) -> Iterator[DataLoader[Any]]:
    """Yield the loaders of lit_loader that a trainer's loops hold: it makes its own copy for a prediction."""
    for combined in _combined_loaders(trainer, loops):
        yield from (loader for loader in combined.flattened if isinstance(loader, DataLoader))


def held_iterators(trainer: Trainer, loops: Sequence[str]) -> list[Any]:
    """Return the iterators of the loaders that a trainer's loops hold."""
    return [iterator for combined in _combined_loaders(trainer, loops) for iterator in _iterators(combined)]


def _combined_loaders(trainer: Trainer | None, loops: Sequence[str]) -> Iterator[CombinedLoader]:
    for path in () if trainer is None else loops:
        combined = operator.attrgetter(path)(trainer)._combined_loader
        if combined is not None:
            yield combined


def _iterators(combined: CombinedLoader) -> list[Any]:
    """Return the list of iterators that Lightning uses, or an empty list before it is iterated."""
    return getattr(combined._iterator, "iterators", [])


def train_loaders(trainer: Trainer | None) -> list[DataLoader[Any]]:
    """Return the training loaders of lit_loader that a trainer's fit loop holds, in its order."""
    return list(held_loaders(trainer, _LOOPS[:1]))


def _combined(trainer: Trainer) -> CombinedLoader | None:
    return trainer.fit_loop._combined_loader


def _rounds(trainer: Trainer) -> Any:
    """Return the iterator that combines the loaders' batches, or None if there is none."""
    combined = _combined(trainer)
    return None if combined is None else combined._iterator


def _fetcher(trainer: Trainer) -> Any:
    return trainer.fit_loop._data_fetcher


def _epoch_state(loader: DataLoader[Any]) -> EpochState[Any]:
    return loader._epochs


class LoopPosition(NamedTuple):
    """Position of a fit loop among the batches of its training loaders.

    Attributes:
        epoch_over: Whether all batches of the epoch were trained on, so that the next epoch comes.
        begun_again: Of each loader that the fit loop combines, whether ``max_size_cycle`` has begun it again in this
            epoch.
        reloaded_epoch: The epoch in which the loop made its loaders, or None if it has made none.
        num_unused: Of each loader, how many of the batches that it gave last were not trained on. Not saved.
    """

    epoch_over: bool
    begun_again: list[bool]
    reloaded_epoch: int | None
    num_unused: list[int]

    def fields(self) -> dict[str, Any]:
        """Return the fields that a checkpoint holds."""
        return {
            "epoch_over": self.epoch_over,
            "begun_again": self.begun_again,
            "reloaded_epoch": self.reloaded_epoch,
        }


def loop_position(trainer: Trainer, resumed: Sequence[bool] = ()) -> LoopPosition:
    """Return the position of a trainer's fit loop.

    Args:
        trainer: The trainer.
        resumed: ``begun_again`` of the checkpoint from which this epoch was resumed; empty if it was not.
    """
    num_unused, epoch_over = _num_unused_rounds(trainer)
    combined = _combined(trainer)
    loaders = [] if combined is None else combined.flattened
    last_reload = trainer.fit_loop._last_train_dl_reload_epoch
    reloaded_epoch = int(last_reload) if last_reload >= 0 else None
    rounds = _rounds(trainer)
    if epoch_over or rounds is None or len(rounds.iterators) != len(loaders):
        return LoopPosition(
            epoch_over, [False] * len(loaders), reloaded_epoch, [min(num_unused, MAX_HELD)] * len(loaders)
        )
    cycles: list[bool] | None = getattr(rounds, "_consumed", None)
    num_rounds = rounds._idx
    # the loaders before the one at which a round was broken off have given a batch more
    iterators = enumerate(rounds.iterators)
    broken_off_at = next((number for number, item in iterators if getattr(item, "stopped", False)), 0)
    unused: list[int] = []
    begun_again: list[bool] = []
    for number, (loader, iterator) in enumerate(zip(loaders, rounds.iterators, strict=True)):
        num_received = getattr(iterator, "num_received", 0)
        # without cycles an iterator counts all of its batches, and fewer if it ended before the others
        num_more = num_received - num_rounds if cycles is None else int(number < broken_off_at)
        num_held = min(max(0, num_unused + num_more), MAX_HELD)
        unused.append(num_held)
        if cycles is None:
            begun_again.append(False)
        elif num_held < num_received or not isinstance(loader, DataLoader):
            begun_again.append(cycles[number] and not getattr(iterator, "_ended", False))
        else:  # the last cycle has only unused batches, so it counts as not begun
            num_in_cycle = _epoch_state(loader).num_received(num_held)
            resumed_again = number < len(resumed) and resumed[number] is True
            begun_again.append(num_rounds - num_unused > num_in_cycle or resumed_again)
    return LoopPosition(epoch_over, begun_again, reloaded_epoch, unused)


def _num_unused_rounds(trainer: Trainer) -> tuple[int, bool]:
    """Return how many combined batches were fetched and not trained on, and whether the epoch is over."""
    fit_loop = trainer.fit_loop
    batches: Any = fit_loop.epoch_loop.batch_progress
    fetcher = _fetcher(trainer)
    num_begun = _num_begun(trainer)
    num_fetched = len(getattr(fetcher, "batches", ()))
    is_done = fetcher is not None and fetcher.done and not num_fetched
    epochs: Any = fit_loop.epoch_progress.total
    is_next = epochs.ready > epochs.started  # on_train_epoch_start, perhaps with new loaders
    is_over = batches.is_last_batch or is_done or is_next
    epoch_over = num_begun == 0 and batches.current.processed > 0 and is_over
    if epoch_over:
        # a resumed run has fetched the next epoch's first batch already, any other run iterates the loaders once more
        return (num_fetched if is_next and fit_loop.is_resuming else 0), True
    if isinstance(fetcher, _DataLoaderIterDataFetcher):  # the training step fetches by itself
        return 0, epoch_over
    # a batch that the fetcher had in hand when it could not get the one after it
    num_lost = 0 if fetcher is None else max(0, fetcher.fetched - batches.current.ready - num_fetched)
    return num_fetched + num_begun + num_lost, epoch_over


def _num_begun(trainer: Trainer) -> int:
    """Return 1 if a batch was given to the training step and the step is not over, else 0."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return int(batches.ready - batches.processed)


def saved_states(trainer: Trainer | None, position: LoopPosition | None = None) -> list[dict[str, Any]]:
    """Return the states of a trainer's training loaders, where the model is, not where they are.

    Args:
        trainer: Whose loaders, or None for no loaders.
        position: Where its fit loop was when the last batch was fetched, or None for its position now.
    """
    if trainer is None:
        return []
    position = loop_position(trainer) if position is None else position
    combined = _combined(trainer)
    loaders = [] if combined is None else combined.flattened
    return [
        loader.state_dict(num_held=num_held)
        for loader, num_held in zip(loaders, position.num_unused, strict=True)
        if isinstance(loader, DataLoader)
    ]


class ResumeStates(Callback):
    """Loads states into the training loaders that there are when training starts.

    Attributes:
        states: The states to load then, once; a list as long as there are loaders of lit_loader.
        position: The fields of the `LoopPosition` that was saved with them, or an empty dict.

    Raises:
        ValueError: At the start of training, if a state does not fit its loader, which has a seed.
    """

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.position: Mapping[str, Any] = {}
        # the combined iterator of the resumed epoch, and which loaders had been begun again before
        self._resumed: tuple[weakref.ref[Any], list[bool]] | None = None
        # loaders that were resumed in the middle of an epoch, until the next one begins
        self._mid_epoch: list[tuple[DataLoader[Any], dict[str, Any]]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_resumed": None, "_mid_epoch": []}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take back the end of an epoch in whose middle ``max_steps`` ended training."""
        callback = (checkpoint.get("callbacks") or {}).get(self.state_key) or {}
        position = self.position or callback.get("position") or {}
        if trainer.state.fn == "fit" and position.get("epoch_over") is not True:
            _continue_epoch(checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the states; see NOTE [What Lightning leaves out]."""
        states, self.states = self.states, []
        position, self.position = self.position, {}
        loaders = train_loaders(trainer)
        if states and len(loaders) != len(states):
            raise ValueError(
                f"the checkpoint holds states of {len(states)} training loaders and there are {len(loaders)}; give the "
                "loaders that it was saved with"
            )
        if states:
            self._resume(trainer, loaders, states, position)
        epochs: Any = trainer.fit_loop.epoch_progress.current
        for loader in loaders:
            if states or _epoch_state(loader).num_received():
                _epoch_state(loader).expect_set(loader._spec(), epochs.processed)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the epoch of loaders that were resumed in the epoch before and were not asked for a batch of it."""
        mid_epoch, self._mid_epoch = self._mid_epoch, []
        for loader, state in mid_epoch:
            if state.get("position") and _epoch_state(loader).has_point:
                _load(trainer, loader, state, epoch_over=True)

    def _resume(
        self,
        trainer: Trainer,
        loaders: list[DataLoader[Any]],
        states: list[dict[str, Any]],
        position: Mapping[str, Any],
    ) -> None:
        fit_loop = trainer.fit_loop
        batches: Any = fit_loop.epoch_loop.batch_progress
        if _num_begun(trainer):
            batches.is_last_batch = False  # it comes again
        elif isinstance(position.get("epoch_over"), bool):
            batches.is_last_batch = position["epoch_over"]
        epoch_over = batches.is_last_batch
        after_batch = fit_loop.epoch_loop.restarted_on_train_batch_end
        # Lightning ends the epoch first, and iterates the loaders again in the next one
        ends_epoch = epoch_over and fit_loop.restarted_mid_epoch and not after_batch
        _begin_whole_epoch(trainer)
        reloaded_epoch = position.get("reloaded_epoch")
        is_due = False
        if type(reloaded_epoch) is int and 0 <= reloaded_epoch <= trainer.current_epoch:
            num_epochs = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)
            is_due = (
                epoch_over and not ends_epoch and 0 < num_epochs <= trainer.current_epoch - reloaded_epoch
            )
            # the loaders of this run are new, so they need not be made once more
            fit_loop._last_train_dl_reload_epoch = trainer.current_epoch if is_due else reloaded_epoch
        if is_due:
            _begin_reloaded(trainer, loaders, states)
        else:
            for loader, state in zip(loaders, states, strict=True):
                _load(trainer, loader, state, epoch_over=epoch_over and not ends_epoch)
        ended: list[Any] = []
        if batches.current.processed > 0 and not epoch_over:
            self._mid_epoch = list(zip(loaders, states, strict=True))
            ended = [loader for loader, state in self._mid_epoch if state.get("position") == 0]
        if not ends_epoch:
            begun_again = position.get("begun_again")
            flags = begun_again if isinstance(begun_again, list) and not epoch_over else []
            iterator = _iterate(trainer, ended, flags, mid_epoch=not epoch_over)
            self._resumed = weakref.ref(iterator), flags
        num_done = batches.current.processed if fit_loop.epoch_loop.restarting else 0
        rank_zero_info(
            f"Resumed in epoch {trainer.current_epoch}: {num_done} of its {fit_loop.max_batches} batches are done."
        )

    def _flags(self, trainer: Trainer) -> list[bool]:
        """Return which loaders had been begun again when this epoch was resumed; empty if it was not."""
        if self._resumed is None:
            return []
        reference, flags = self._resumed
        return flags if reference() is _rounds(trainer) else []


def _load(trainer: Trainer, loader: DataLoader[Any], state: dict[str, Any], *, epoch_over: bool) -> None:
    """Load a state, or the beginning of the next epoch if the epoch of the state is over."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    following = state
    is_exact = True
    is_stream = isinstance(loader.dataset, IterableDataset)
    if epoch_over and state.get("position") and is_stream:
        try:
            check_state(state)
            if state.get("kind") == "stream":
                keeps = loader.persistent_workers and loader.num_workers > 0
                following, is_exact = next_epoch_state(state, persistent_workers=keeps)
        except ValueError:
            pass  # refused, or left aside with a warning, when it is loaded
        if not is_exact:
            _warn_inexact(
                loader,
                "its last epoch was broken off, and persistent workers have their copies of the dataset ahead of that "
                "by a number of samples that is not the same in each run; give persistent_workers=False",
            )
    loader.load_state_dict(following)
    if following is not state and is_exact:
        _epoch_state(
            loader
        ).forget_point()  # an epoch without a batch is one, as in the run that was not stopped
    if epoch_over and loader._slicing is not None:
        loader.set_epoch(epochs.processed)
    elif epoch_over and state.get("position") and not is_stream:
        loader.set_epoch(state["epoch"] + 1)


def _begin_reloaded(trainer: Trainer, loaders: list[DataLoader[Any]], states: list[dict[str, Any]]) -> None:
    """Load no state, because ``reload_dataloaders_every_n_epochs`` gives this epoch new loaders."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    for loader, state in zip(loaders, states, strict=True):
        if not isinstance(loader.dataset, IterableDataset):
            loader.set_epoch(epochs.processed)
            continue
        # Lightning fetches a batch of a loader without a length before it begins the epoch, and begins it again.
        loader.set_epoch(int(trainer.fit_loop.max_batches == float("inf")))
        if state.get("dataset_state") is not None:
            _warn_inexact(
                loader,
                "reload_dataloaders_every_n_epochs makes its loader again at the beginning of this epoch, and the "
                "dataset's state is not restored then; save the checkpoint within an epoch, or leave out the reload",
            )


def _warn_inexact(loader: DataLoader[Any], reason: str) -> None:
    name = type(loader.dataset).__name__
    warnings.warn(f"the resumed epoch of {name} is not exact: {reason}", ResumeWarning, stacklevel=2)


def _iterate(trainer: Trainer, ended: list[Any], begun_again: Sequence[bool], *, mid_epoch: bool) -> Any:
    """Have the fit loop's fetcher begin again, after states were loaded, and return the combined iterator.

    Args:
        trainer: The trainer.
        ended: Loaders that have no more batches in this round through them.
        begun_again: See `LoopPosition`.
        mid_epoch: Whether an epoch is gone on with.
    """
    fetcher = _fetcher(trainer)
    combined = _combined(trainer)
    assert combined is not None
    # The fetcher fetches in iter() already, and must find the iterators changed by then.
    num_prefetched = fetcher.prefetch_batches if isinstance(fetcher, _PrefetchDataFetcher) else 0
    if isinstance(fetcher, _PrefetchDataFetcher):
        fetcher.prefetch_batches = 0
    loaders = list(combined.flattened)
    for number, loader in enumerate(loaders):
        if any(loader is other for other in ended):
            combined.flattened[number] = ()
    iter(fetcher)
    combined.flattened[:] = loaders
    fetcher.reset()  # with the lengths of all loaders
    rounds = _rounds(trainer)
    if mid_epoch:
        for iterator in rounds.iterators:
            if isinstance(iterator, LoaderIterator):
                iterator.ends_without_batches = True
        if len(begun_again) == len(getattr(rounds, "_consumed", ())):
            rounds._consumed = [flag is True for flag in begun_again]
    if isinstance(fetcher, _PrefetchDataFetcher):
        fetcher.prefetch_batches = num_prefetched
        if fetcher.length is None:
            for _ in range(num_prefetched):
                try:
                    fetcher.batches.append(_DataFetcher.__next__(fetcher))
                except StopIteration:
                    break
    return rounds


def resume_with(
    trainer: Trainer, states: list[dict[str, Any]], position: Mapping[str, Any] | None = None
) -> None:
    """Have a trainer load these states when training starts, with the fields of a `LoopPosition`."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined] # Lightning sets it elsewhere
    resume = next((callback for callback in callbacks if isinstance(callback, ResumeStates)), None)
    if resume is None:
        resume = ResumeStates()
        callbacks.insert(0, resume)
    resume.states = states
    resume.position = position if isinstance(position, Mapping) else {}


def _continue_epoch(checkpoint: dict[str, Any]) -> None:
    """Change the progress in a checkpoint so that the epoch in whose middle training ended is not over.

    Lightning counts such an epoch as processed, and would train nothing if it is the last one of ``max_epochs``.
    """
    loop = (checkpoint.get("loops") or {}).get("fit_loop") or {}
    batches = loop.get("epoch_loop.batch_progress")
    epochs = loop.get("epoch_progress")
    if not batches or not epochs or batches["is_last_batch"] or not batches["current"]["processed"]:
        return
    total = epochs["total"]
    if not total["processed"] == total["started"] == total["ready"] > 0:
        return
    for counts in (total, epochs["current"]):
        counts["processed"] -= 1
        counts["completed"] = counts["processed"]


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
        epoch_loop._batches_that_stepped += 1  # as Lightning does when it continues an epoch
    if after_last and fit_loop.restarted_mid_epoch:
        # Otherwise Lightning does not count the next epoch as begun, and a checkpoint of that cannot be resumed.
        fit_loop.reset_restart_stage()
    epoch_loop.restarting = False
