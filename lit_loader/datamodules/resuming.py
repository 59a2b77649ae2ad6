"""Resuming a training run: saving the states of its loaders, and loading them at the right moment.

The data modules use private state of Lightning's loops only in this module, which was written for Lightning 2.6.

NOTE [Gaps in Lightning's resume]
    Lightning saves and loads the states of training loaders itself. In version 2.6 it has these gaps:
    - It loads no state if ``configure_optimizers`` reads ``trainer.estimated_stepping_batches``.
    - It counts batches that were fetched but not trained on: a batch that its fetcher holds (of a loader without a
      length), the batch of a step that raised, and batches of the loaders in front of a loader of a `CombinedLoader`
      that ended or raised.
    - A state saved at ``limit_train_batches``, or where the shortest loader ended, counts as the middle of an epoch:
      only samplers of lit_loader get the next epoch.
    - Under ``CombinedLoader(mode="max_size")`` it restarts a loader that had ended before the others, and under
      "max_size_cycle" it forgets which loaders it has restarted.
    - Of loaders without a length, it sets the samplers' epoch after it has fetched the first batch.
    - It forgets when it last reloaded the loaders.
    - With ``max_steps``, or if saved as an epoch begins, a checkpoint between two epochs gives an epoch of one batch.
    - An epoch in whose middle ``max_steps`` ended training counts as complete, and nothing is trained if it was the
      last of ``max_epochs``.
    So a checkpoint contains a `LoopPosition` next to the loaders' states. When training starts, before the first batch,
    the states are loaded again and the loop is corrected.
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

__all__ = ["LoopPosition", "ResumeStates", "held_iterators", "held_loaders", "resume_callback", "train_loaders"]

_LOOPS = ("fit_loop", "fit_loop.epoch_loop.val_loop", "validate_loop", "test_loop", "predict_loop")


def held_loaders(trainer: Trainer | None, loops: Sequence[str] = _LOOPS) -> Iterator[DataLoader[Any]]:
    """Yield the loaders of lit_loader in a trainer's loops, which include Lightning's copies for prediction."""
    for combined in _combined_loaders(trainer, loops):
        yield from (loader for loader in combined.flattened if isinstance(loader, DataLoader))


def held_iterators(trainer: Trainer, loops: Sequence[str]) -> list[Any]:
    """Return the iterators of the loaders in a trainer's loops, without loops that have not iterated yet."""
    combined_loaders = _combined_loaders(trainer, loops)
    return [iterator for combined in combined_loaders for iterator in getattr(combined._iterator, "iterators", [])]


def _combined_loaders(trainer: Trainer | None, loops: Sequence[str]) -> Iterator[CombinedLoader]:
    for path in () if trainer is None else loops:
        combined = operator.attrgetter(path)(trainer)._combined_loader
        if combined is not None:
            yield combined


def train_loaders(trainer: Trainer | None) -> list[DataLoader[Any]]:
    """Return the training loaders of lit_loader in a trainer's fit loop, in its order."""
    return list(held_loaders(trainer, _LOOPS[:1]))


def _combined(trainer: Trainer) -> CombinedLoader | None:
    return trainer.fit_loop._combined_loader


def _rounds(trainer: Trainer) -> Any:
    """Return the iterator that combines the loaders' batches, or None before it exists."""
    combined = _combined(trainer)
    return None if combined is None else combined._iterator


def _fetcher(trainer: Trainer) -> Any:
    return trainer.fit_loop._data_fetcher


def _epoch_state(loader: DataLoader[Any]) -> EpochState[Any]:
    return loader._epochs


class LoopPosition(NamedTuple):
    """Position of a fit loop among the batches of its training loaders.

    Attributes:
        epoch_over: True if all batches of the epoch were trained on, so that the next epoch follows.
        begun_again: For each loader of the fit loop, True if ``max_size_cycle`` has restarted it in this epoch.
        reloaded_epoch: The epoch in which the loop made its loaders, or None if it has made none.
        num_unused: For each loader, the number of its last batches that were not trained on. Not saved.
    """

    epoch_over: bool
    begun_again: list[bool]
    reloaded_epoch: int | None
    num_unused: list[int]

    def fields(self) -> dict[str, Any]:
        """Return the fields that are saved in a checkpoint."""
        return {"epoch_over": self.epoch_over, "begun_again": self.begun_again, "reloaded_epoch": self.reloaded_epoch}


def loop_position(trainer: Trainer, resumed: Sequence[bool] = ()) -> LoopPosition:
    """Return the position of a trainer's fit loop.

    Args:
        trainer: The trainer.
        resumed: ``begun_again`` of the checkpoint from which this epoch was resumed, or empty.
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
    # Only "max_size_cycle" has _consumed: for each loader, True if it has ended at least once in this epoch.
    cycles: list[bool] | None = getattr(rounds, "_consumed", None)
    num_rounds = rounds._idx
    # If a loader broke off a round, the loaders in front of it have already yielded a batch of that round.
    iterators = enumerate(rounds.iterators)
    broken_off_at = next((number for number, iterator in iterators if getattr(iterator, "stopped", False)), 0)
    unused: list[int] = []
    begun_again: list[bool] = []
    for number, (loader, iterator) in enumerate(zip(loaders, rounds.iterators, strict=True)):
        num_received = getattr(iterator, "num_received", 0)
        # Without cycles an iterator counts all its batches of the epoch, and has fewer if it ended before the others.
        num_extra = num_received - num_rounds if cycles is None else int(number < broken_off_at)
        num_held = min(max(0, num_unused + num_extra), MAX_HELD)
        unused.append(num_held)
        if cycles is None:
            begun_again.append(False)
        elif num_held < num_received or not isinstance(loader, DataLoader):
            begun_again.append(cycles[number] and not getattr(iterator, "_ended", False))
        else:
            # The last cycle has only unused batches, so it counts as not begun.
            num_in_cycle = _epoch_state(loader).num_received(num_held)
            resumed_again = number < len(resumed) and resumed[number] is True
            begun_again.append(num_rounds - num_unused > num_in_cycle or resumed_again)
    return LoopPosition(epoch_over, begun_again, reloaded_epoch, unused)


def _num_unused_rounds(trainer: Trainer) -> tuple[int, bool]:
    """Return the number of combined batches that were fetched but not trained on, and whether the epoch is over."""
    fit_loop = trainer.fit_loop
    batches: Any = fit_loop.epoch_loop.batch_progress
    fetcher = _fetcher(trainer)
    # Batches in the fetcher's queue were never given to a step.
    num_begun = _num_begun(trainer)
    num_fetched = len(getattr(fetcher, "batches", ()))
    is_done = fetcher is not None and fetcher.done and not num_fetched
    epochs: Any = fit_loop.epoch_progress.total
    # In on_train_epoch_start, where Lightning may have made new loaders, the next epoch is ready and not started.
    is_next = epochs.ready > epochs.started
    is_over = batches.is_last_batch or is_done or is_next
    epoch_over = num_begun == 0 and batches.current.processed > 0 and is_over
    if epoch_over:
        # A resumed run has already fetched the first batch of the next epoch; any other run iterates the loaders anew.
        return (num_fetched if is_next and fit_loop.is_resuming else 0), True
    if isinstance(fetcher, _DataLoaderIterDataFetcher):
        # The training step fetches its batches, so none is fetched ahead.
        return 0, epoch_over
    # The fetcher loses the batch in its hand if fetching the batch after it fails.
    num_lost = 0 if fetcher is None else max(0, fetcher.fetched - batches.current.ready - num_fetched)
    return num_fetched + num_begun + num_lost, epoch_over


def _num_begun(trainer: Trainer) -> int:
    """Return 1 if the training step has begun a batch and not finished it, else 0."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return int(batches.ready - batches.processed)


class ResumeStates(Callback):
    """Saves the states of training loaders in a checkpoint, and loads them when training starts.

    Attributes:
        states: The states to load once, one for each training loader of lit_loader.
        position: The fields of the `LoopPosition` that was saved with them, or an empty dict.

    Raises:
        ValueError: At the start of training, if a state does not fit a loader with a seed.
    """

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.position: Mapping[str, Any] = {}
        # What `saved` returned at the end of training.
        self._last: tuple[list[dict[str, Any]], dict[str, Any]] | None = None
        # The combined iterator of the resumed epoch, and `begun_again` of its checkpoint.
        self._resumed: tuple[weakref.ref[Any], list[bool]] | None = None
        # Loaders that were resumed in the middle of an epoch, with their states, until the next epoch begins.
        self._mid_epoch: list[tuple[DataLoader[Any], dict[str, Any]]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_resumed": None, "_mid_epoch": []}

    def load_later(self, states: list[dict[str, Any]], position: object) -> None:
        """Store states and the fields of their `LoopPosition`, from a checkpoint, until training starts."""
        self.states = states
        self.position = position if isinstance(position, Mapping) else {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the states at which an earlier fit ended."""
        if stage == "fit":
            self._last = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the states for a checkpoint that is saved later, without the fetcher, or without the loaders."""
        self._last = self.saved(trainer)

    def saved(self, trainer: Trainer) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the states of a trainer's training loaders, now or at the end of training.

        Returns:
            The states after the last batch that was trained on, and the fields of the `LoopPosition`.
        """
        if self._last is not None:
            return self._last
        position = loop_position(trainer, self._flags(trainer))
        combined = _combined(trainer)
        loaders = [] if combined is None else combined.flattened
        pairs = zip(loaders, position.num_unused, strict=True)
        states = [loader.state_dict(num_held=num) for loader, num in pairs if isinstance(loader, DataLoader)]
        return states, position.fields()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Undo the end of an epoch in whose middle ``max_steps`` ended training."""
        callback_state = (checkpoint.get("callbacks") or {}).get(self.state_key) or {}
        position = self.position or callback_state.get("position") or {}
        if trainer.state.fn == "fit" and position.get("epoch_over") is not True:
            _continue_epoch(checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the states; see NOTE [Gaps in Lightning's resume]."""
        states, self.states = self.states, []
        position, self.position = self.position, {}
        loaders = train_loaders(trainer)
        if states and len(loaders) != len(states):
            raise ValueError(
                f"the checkpoint has states of {len(states)} training loaders and there are {len(loaders)}; train with "
                "the same loaders as when it was saved"
            )
        if states:
            self._resume(trainer, loaders, states, position)
        epochs: Any = trainer.fit_loop.epoch_progress.current
        for loader in loaders:
            if states or _epoch_state(loader).num_received():
                _epoch_state(loader).expect_set(loader._spec(), epochs.processed)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the next epoch of loaders that were resumed in the last epoch and yielded no batch of it."""
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
            # The batch of the unfinished step is trained on again.
            batches.is_last_batch = False
        # Lightning's flag is wrong where limit_train_batches or the shortest loader ended the epoch.
        elif isinstance(position.get("epoch_over"), bool):
            batches.is_last_batch = position["epoch_over"]
        epoch_over = batches.is_last_batch
        after_batch = fit_loop.epoch_loop.restarted_on_train_batch_end
        # In this case Lightning first ends the epoch, and iterates the loaders again in the next epoch.
        ends_epoch = epoch_over and fit_loop.restarted_mid_epoch and not after_batch
        _begin_whole_epoch(trainer)
        # Values from a checkpoint may be of any type, so they are checked before use.
        reloaded_epoch = position.get("reloaded_epoch")
        is_due = False
        if type(reloaded_epoch) is int and 0 <= reloaded_epoch <= trainer.current_epoch:
            num_epochs = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)
            is_due = epoch_over and not ends_epoch and 0 < num_epochs <= trainer.current_epoch - reloaded_epoch
            # The loaders of this run are new, so Lightning need not make them again.
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
        # If Lightning ends the epoch first, it restarts the fetcher itself.
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
        """Return `begun_again` of the checkpoint from which this epoch was resumed, or an empty list."""
        if self._resumed is None:
            return []
        reference, flags = self._resumed
        return flags if reference() is _rounds(trainer) else []


def _load(trainer: Trainer, loader: DataLoader[Any], state: dict[str, Any], *, epoch_over: bool) -> None:
    """Load a state, or the start of the next epoch if the state's epoch is over."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    next_state = state
    is_exact = True
    is_stream = isinstance(loader.dataset, IterableDataset)
    if epoch_over and state.get("position") and is_stream:
        try:
            check_state(state)
            if state.get("kind") == "stream":
                keeps = loader.persistent_workers and loader.num_workers > 0
                next_state, is_exact = next_epoch_state(state, persistent_workers=keeps)
        except ValueError:
            # load_state_dict() below refuses the state, or ignores it with a warning.
            pass
        if not is_exact:
            _warn_inexact(
                loader,
                "its last epoch was broken off, and the dataset copies of persistent workers are ahead of that by a "
                "number of samples that differs from run to run; give persistent_workers=False",
            )
    loader.load_state_dict(next_state)
    if next_state is not state and is_exact:
        # As in the uninterrupted run, an epoch without a batch counts as an epoch.
        _epoch_state(loader).forget_point()
    if epoch_over and loader._slicing is not None:
        loader.set_epoch(epochs.processed)
    elif epoch_over and state.get("position") and not is_stream:
        loader.set_epoch(state["epoch"] + 1)


def _begin_reloaded(trainer: Trainer, loaders: list[DataLoader[Any]], states: list[dict[str, Any]]) -> None:
    """Set the epochs of new loaders, which ``reload_dataloaders_every_n_epochs`` made, without loading states."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    for loader, state in zip(loaders, states, strict=True):
        if not isinstance(loader.dataset, IterableDataset):
            loader.set_epoch(epochs.processed)
            continue
        # Lightning fetches a batch of a loader without a length before the epoch begins, and then iterates it anew.
        loader.set_epoch(int(trainer.fit_loop.max_batches == float("inf")))
        if state.get("dataset_state") is not None:
            _warn_inexact(
                loader,
                "reload_dataloaders_every_n_epochs makes a new loader at the start of this epoch, and does not restore "
                "the dataset's state; save the checkpoint within an epoch, or leave out the reload",
            )


def _warn_inexact(loader: DataLoader[Any], reason: str) -> None:
    name = type(loader.dataset).__name__
    warnings.warn(f"the resumed epoch of {name} is not exact: {reason}", ResumeWarning, stacklevel=2)


def _iterate(trainer: Trainer, ended: list[Any], begun_again: Sequence[bool], *, mid_epoch: bool) -> Any:
    """Restart the fit loop's fetcher after states were loaded, and return the combined iterator.

    Args:
        trainer: The trainer.
        ended: Loaders without further batches in this epoch.
        begun_again: See `LoopPosition`.
        mid_epoch: True if the run continues in the middle of an epoch.
    """
    fetcher = _fetcher(trainer)
    combined = _combined(trainer)
    assert combined is not None
    # iter(fetcher) would already fetch batches, before the iterators are changed below.
    num_prefetched = fetcher.prefetch_batches if isinstance(fetcher, _PrefetchDataFetcher) else 0
    if isinstance(fetcher, _PrefetchDataFetcher):
        fetcher.prefetch_batches = 0
    # An ended loader yields nothing: iter() sees an empty tuple in its place.
    loaders = list(combined.flattened)
    for number, loader in enumerate(loaders):
        if any(loader is ended_loader for ended_loader in ended):
            combined.flattened[number] = ()
    iter(fetcher)
    combined.flattened[:] = loaders
    # Reads the lengths of all loaders.
    fetcher.reset()
    rounds = _rounds(trainer)
    # The checkpoint may have been saved after a loader's last batch; then its iterator ends at once.
    if mid_epoch:
        for iterator in rounds.iterators:
            if isinstance(iterator, LoaderIterator):
                iterator.ends_without_batches = True
        if len(begun_again) == len(getattr(rounds, "_consumed", ())):
            rounds._consumed = [flag is True for flag in begun_again]
    if isinstance(fetcher, _PrefetchDataFetcher):
        fetcher.prefetch_batches = num_prefetched
        # The fetcher's __iter__ does the same for loaders without a length.
        if fetcher.length is None:
            for _ in range(num_prefetched):
                try:
                    fetcher.batches.append(_DataFetcher.__next__(fetcher))
                except StopIteration:
                    break
    return rounds


def resume_callback(trainer: Trainer) -> ResumeStates:
    """Return a trainer's `ResumeStates`, which is added to its callbacks if it has none."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined] # Lightning sets it elsewhere
    for callback in callbacks:
        if isinstance(callback, ResumeStates):
            return callback
    resume = ResumeStates()
    callbacks.insert(0, resume)
    return resume


def _continue_epoch(checkpoint: dict[str, Any]) -> None:
    """Change the progress in a checkpoint so that an epoch in whose middle training ended is not over.

    Lightning counts such an epoch as processed, and would train nothing if it is the last of ``max_epochs``.
    """
    loop = (checkpoint.get("loops") or {}).get("fit_loop") or {}
    batches = loop.get("epoch_loop.batch_progress")
    epochs = loop.get("epoch_progress")
    if not batches or not epochs or batches["is_last_batch"] or not batches["current"]["processed"]:
        return
    # Only a run that ended has completed its epoch; a checkpoint saved within an epoch has started > processed.
    total = epochs["total"]
    if not total["processed"] == total["started"] == total["ready"] > 0:
        return
    for counts in (total, epochs["current"]):
        counts["processed"] -= 1
        counts["completed"] = counts["processed"]


def _begin_whole_epoch(trainer: Trainer) -> None:
    """If the checkpoint was saved after the last batch of an epoch, let the next epoch have all its batches."""
    fit_loop = trainer.fit_loop
    epoch_loop = fit_loop.epoch_loop
    after_last = epoch_loop.batch_progress.is_last_batch and epoch_loop.restarted_on_train_batch_end
    if fit_loop.restarted_on_epoch_end:
        fit_loop.epoch_progress.increment_completed()
        fit_loop.reset_restart_stage()
    elif not fit_loop.restarted_on_epoch_start and not after_last:
        return
    elif after_last and epoch_loop.restarting and not epoch_loop._should_accumulate():
        # Lightning does the same when it continues an epoch.
        epoch_loop._batches_that_stepped += 1
    if after_last and fit_loop.restarted_mid_epoch:
        # Otherwise Lightning does not count the next epoch as begun, and cannot resume a checkpoint of it.
        fit_loop.reset_restart_stage()
    epoch_loop.restarting = False
