"""Random training runs that are stopped and resumed, and the comparison of their samples and draws."""

from __future__ import annotations

import random
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from lit_loader.callbacks import ResumeLoaders
from lit_loader.errors import NotResumableWarning, ResumeWarning
from tests.support.lightning_resuming import Learner, Save, fitted
from tests.support.resume_sets import Numbers, StatefulStream, Stream, draws, share

BATCH = 3
# hooks of a callback that saves; the number of batches is the one that the model has been trained on
HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_exception",
)
# hooks of the module that raise, or the function that makes a batch
RAISES = ("on_train_batch_start", "training_step", "on_train_batch_end", "collate")
# the words by which a warning or a refusal says that a resume is not exact
NAMED = re.compile("not exact|starts over|cannot be resumed|does not fit")


class Walk:
    """An iterator with a state."""

    def __init__(self, size, epoch=0):
        self.size = size
        self.epoch = epoch
        self.at, self.step = share()

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.size:
            raise StopIteration
        self.at += self.step
        return draws(1000 * self.epoch + self.at - self.step)

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at = state["at"]
        self.epoch = state["epoch"]


class WalkedStream(Stream):
    """A dataset without a state whose iterators have one."""

    def __iter__(self):
        return Walk(self.size)


class CountedStream(Stream):
    """A dataset that counts its epochs and gives other samples in each."""

    def __init__(self, size):
        super().__init__(size)
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return Walk(self.size, self.epoch)

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


DATASETS = {
    "map": Numbers,
    "stream": Stream,
    "stateful": StatefulStream,
    "iterator": WalkedStream,
    "counted": CountedStream,
}


@dataclass(frozen=True)
class Part:
    """One loader of a run."""

    dataset: str
    size: int
    num_workers: int = 0
    persistent: bool = False


@dataclass(frozen=True)
class Case:
    """A run, and where it is stopped.

    Attributes:
        parts: The loaders.
        mode: How they are combined, or None for a single loader.
        hook: The hook in which the checkpoint is saved.
        stop: Which of the checkpoints, as a fraction of their number; for ``on_exception`` which step raises.
        raises: What raises then.
        short: Whether the run is stopped by ``max_steps``, and the checkpoint is its last one.
        twice: Whether the resumed run is stopped and resumed as well.
        reload: ``reload_dataloaders_every_n_epochs``.
        same_datasets: Whether a reloaded loader has the same dataset object.
        limit: ``limit_train_batches``, or None for all batches.
        max_steps: Whether the run is limited by steps.
        ask: Whether ``configure_optimizers`` asks for the number of steps.
    """

    parts: tuple[Part, ...]
    mode: str | None = None
    hook: str = "on_train_batch_end"
    stop: float = 0.5
    raises: str = "training_step"
    short: bool = False
    twice: bool = False
    reload: int = 0
    same_datasets: bool = False
    limit: int | None = None
    max_steps: bool = False
    ask: bool = False

    @property
    def is_unstable(self):
        """Whether even whole runs may differ: persistent workers are ahead in an epoch that is broken off."""
        return any(part.persistent and part.dataset in ("stateful", "counted") for part in self.parts)


def random_case(seed):
    """Return a case drawn from a seed."""
    draw = random.Random(seed)
    parts = []
    for _ in range(draw.choice([1, 1, 2, 2, 3])):
        num_workers = draw.choice([0, 0, 2])
        parts.append(
            Part(
                dataset=draw.choice(["map", "stream", "stateful", "iterator", "counted"]),
                size=draw.randint(1, 20),
                num_workers=num_workers,
                persistent=num_workers > 0 and draw.random() < 0.5,
            )
        )
    mode = None if len(parts) == 1 else draw.choice(["max_size", "max_size_cycle", "min_size"])
    hook = draw.choice([*HOOKS, "on_train_batch_start", "on_train_batch_end", "on_exception"])
    return Case(
        tuple(parts),
        mode,
        hook=hook,
        short=hook in ("on_train_epoch_end", "on_train_end") and draw.random() < 0.7,
        twice=hook not in ("on_train_end", "on_exception") and draw.random() < 0.3,
        stop=draw.random(),
        raises=draw.choice(RAISES),
        reload=draw.choice([0, 0, 0, 1, 2]),
        same_datasets=draw.random() < 0.5,
        limit=draw.choice([None, None, None, 2, 4]),
        max_steps=draw.random() < 0.2,
        ask=draw.random() < 0.1,
    )


class Stop(Exception):
    """Ends a run."""


class Collate:
    """Makes a batch, and raises at a certain first sample of one loader."""

    fails_at = None

    def __init__(self, number):
        self.number = number

    def __call__(self, samples):
        if Collate.fails_at == (self.number, float(samples[0][0])):
            raise Stop
        return torch.stack(samples)


class Recorder(Learner):
    """A module that records each loader's part of every batch, and raises at a step."""

    def __init__(self, make, *, ask=False, raise_at=None, raises="training_step"):
        super().__init__(make, ask=ask)
        self.raise_at = raise_at
        self.raises = raises

    def configure_optimizers(self):
        if self.ask:
            _ = self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def _raise(self, hook, number):
        if self.raise_at == number and self.raises == hook:
            raise Stop

    def on_train_batch_start(self, batch, batch_idx):
        self._raise("on_train_batch_start", len(self.seen))

    def training_step(self, batch, batch_idx):
        self._raise("training_step", len(self.seen))
        parts = batch.values() if isinstance(batch, dict) else [batch]
        self.seen.append([None if part is None else part.tolist() for part in parts])
        return self.layer.weight.sum()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self._raise("on_train_batch_end", len(self.seen))


def _maker(case):
    """Return a function that makes a run's loaders, and the list to which it adds them."""
    all_loaders = []
    datasets = [DATASETS[part.dataset](part.size) for part in case.parts]

    def make():
        if not case.same_datasets:
            datasets[:] = [DATASETS[part.dataset](part.size) for part in case.parts]
        loaders = {}
        for number, (part, dataset) in enumerate(zip(case.parts, datasets, strict=True)):
            is_map = not isinstance(dataset, IterableDataset)
            loaders[str(number)] = DataLoader(
                dataset,
                BATCH,
                shuffle=True if is_map else None,
                seed=3 + number,
                num_workers=part.num_workers,
                multiprocessing_context="fork" if part.num_workers else None,
                persistent_workers=part.persistent,
                collate_fn=Collate(number),
            )
        all_loaders.extend(loaders.values())
        return loaders["0"] if case.mode is None else CombinedLoader(loaders, case.mode)

    return make, all_loaders


def _fit(case, *callbacks, ckpt_path=None, raise_at=None, max_steps=None):
    """Return the batches of a run and the texts of its warnings."""
    make, loaders = _maker(case)
    model = Recorder(make, ask=case.ask, raise_at=raise_at, raises=case.raises)
    settings = {"max_epochs": 4, "reload_dataloaders_every_n_epochs": case.reload, "limit_val_batches": 0}
    if case.limit is not None:
        settings["limit_train_batches"] = case.limit
    if case.max_steps:
        settings |= {"max_steps": 17, "max_epochs": -1}
    if max_steps is not None:
        settings["max_steps"] = max_steps
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fitted(model, callbacks=[ResumeLoaders(), *callbacks], ckpt_path=ckpt_path, **settings)
        except Stop:
            assert raise_at is not None
        finally:
            for loader in loaders:
                loader.close()
    texts = [
        str(warning.message)
        for warning in caught
        if issubclass(warning.category, (ResumeWarning, NotResumableWarning)) or "resum" in str(warning.message)
    ]
    return model.seen, texts


def outcome(case, folder: Path, *, with_warning=False):
    """Stop and resume a run; return "equal", "named", or how the resumed run differs from the whole one.

    Args:
        case: The run.
        folder: Where its checkpoints are saved.
        with_warning: Whether a run that is equal counts as "named" if there was a warning: what persistent workers
            are ahead differs from run to run.
    """
    save = Save(folder, case.hook)
    if case.hook == "on_exception" or case.short:
        whole_run, texts = _fit(case)
    else:
        whole_run, texts = _fit(case, save)
    if case.short and whole_run:
        _, texts = _fit(case, save, max_steps=1 + int(case.stop * len(whole_run)))
        save.saved = save.saved[-1:]
    elif case.hook == "on_exception" and whole_run:
        raise_at = int(case.stop * len(whole_run))
        if case.raises == "collate":
            parts = list(enumerate(whole_run[raise_at]))
            parts = [(number, part[0][0]) for number, part in parts if part is not None]
            Collate.fails_at = parts[int(case.stop * 100) % len(parts)]
        _, texts = _fit(case, save, raise_at=raise_at)
        Collate.fails_at = None
    if not save.saved:
        return "empty"
    num_seen, path = save.saved[min(int(case.stop * len(save.saved)), len(save.saved) - 1)]
    second_save = Save(folder / "again", case.hook)
    batches, result = _resumed(
        case, whole_run[num_seen:], path, texts, *([second_save] if case.twice else []), with_warning=with_warning
    )
    if result == "equal" and second_save.saved:
        num_more, path = second_save.saved[int(case.stop * len(second_save.saved))]
        num_seen += num_more
        batches, result = _resumed(case, whole_run[num_seen:], path, texts, with_warning=with_warning)
    if result == "different" and case.is_unstable and _fit(case)[0] != whole_run:
        return "unstable"
    if result == "different":
        return f"after {num_seen} of {len(whole_run)}: {difference(batches, whole_run[num_seen:])}"
    return result


def _resumed(case, expected, path, texts, *callbacks, with_warning):
    """Resume a run; return its batches, and "equal", "named" or "different"."""
    try:
        resumed, more_texts = _fit(case, *callbacks, ckpt_path=path)
    except (ValueError, RuntimeError) as error:
        return [], "named" if NAMED.search(str(error)) else f"raised {error!r}"
    is_named = any(NAMED.search(text) for text in texts + more_texts)
    if resumed == expected and not (with_warning and is_named):
        return resumed, "equal"
    return resumed, "named" if is_named else "different"


def ids(batches):
    """Return the samples' numbers of batches, without their draws."""
    return [[None if part is None else [row[0] for row in part] for part in batch] for batch in batches]


def difference(resumed, expected):
    """Say where two lists of batches differ."""
    for number, (mine, other) in enumerate(zip(resumed, expected, strict=False)):
        if mine != other:
            kind = "draws" if ids([mine]) == ids([other]) else "ids"
            return f"{kind} of batch {number}: {ids([mine])[0]} instead of {ids([other])[0]}"
    return f"{len(resumed)} batches instead of {len(expected)}"
