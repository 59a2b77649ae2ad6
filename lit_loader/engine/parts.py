"""Parts of mixed samples: each is read under its own key, then the dataset mixes them under the sample's key."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from lit_loader.engine.bad_samples import BadSample, text_of
from lit_loader.engine.spec import Task
from lit_loader.memory import batch_memory
from lit_loader.mixing import PartnerDataset
from lit_loader.seeding import EpochKeys, RngPurpose

SeedFn: TypeAlias = Callable[..., None]
"""Seeds the generators: takes `EpochKeys`, `RngPurpose`, and one or two numbers, which `RngPurpose` explains."""


class PartChoice(NamedTuple):
    """A part of a mixed sample: its own image or a partner.

    Attributes:
        dataset_index: Index of the image.
        object_row: Row of the object for which a pool drew it, or None.
        mix: Number of the mix that the partner is for; -1 for the sample's own image.
    """

    dataset_index: int
    object_row: int | None = None
    mix: int = -1


def task_parts(task: Task, row: int, index: Any) -> list[PartChoice]:
    """Return the planned parts of a sample: its own image, then its partners."""
    parts = [PartChoice(index)]
    if task.partners is not None:
        parts += [PartChoice(p.dataset_index, p.object_row, p.mix) for p in task.partners[row]]
    return parts


class PartReader:
    """Makes the samples of a `PartnerDataset`.

    Args:
        dataset: The dataset.
        seed: Seeds the generators.

    Determinism: a sample without partners has the key of its position, as from any other dataset. Of a mixed sample,
        part j is read under the key of (position, j), so it does not depend on the draws of the parts before it.
    """

    def __init__(self, dataset: PartnerDataset, *, seed: SeedFn) -> None:
        self._dataset = dataset
        self._seed = seed
        # The parts of the last sample, and the number of the one that was read last; None after all were read.
        self._parts: Sequence[PartChoice] = ()
        self._number: int | None = None

    def sample(self, keys: EpochKeys | None, position: int, parts: Sequence[PartChoice]) -> Any:
        """Return the sample that is mixed of these parts.

        Args:
            keys: The keys of the epoch, or None without a seed.
            position: Position of the sample in the order.
            parts: The sample's own part, then its partners, with indices of this dataset.
        """
        dataset = self._dataset
        index = parts[0].dataset_index
        self._parts = parts
        self._number = 0
        if keys is None or len(parts) == 1:
            if keys is not None:
                self._seed(keys, RngPurpose.SAMPLE, position)
            own_part = dataset.read_part(index)
            self._number = None
            return dataset.mixed_sample(index, own_part, ())
        contents = []
        # Not in the memory of the batch, where a part would occupy the place of a sample.
        with batch_memory.using(None):
            for number, part in enumerate(parts):
                self._number = number
                self._seed(keys, RngPurpose.PARTNER, position, number)
                contents.append(dataset.read_part(part.dataset_index, part.object_row))
        self._number = None
        self._seed(keys, RngPurpose.SAMPLE, position)
        partners = [(part.mix, content) for part, content in zip(parts[1:], contents[1:], strict=True)]
        return dataset.mixed_sample(index, contents[0], partners)

    def find_bad_part(self, error: Exception) -> int:
        """Return the number of the part that caused an error of `sample`, 0 for the sample's own.

        An image whose pixels are read on demand may fail while the parts are mixed. Its error names its file.
        """
        if self._number is not None:
            return self._number
        # User code may fail here too, and its first error is the one to raise.
        with contextlib.suppress(Exception):
            path = os.fsdecode(getattr(error, "filename", ""))
            # Not every dataset has paths.
            dataset: Any = self._dataset
            for number, part in enumerate(self._parts):
                if path and os.fsdecode(dataset.sample_path(part.dataset_index)) == path:
                    return number
        return 0


class Attempts:
    """Failed attempts at one sample, whose parts are replaced by their spares.

    The plan has chosen the spares, and they get the keys of the parts that they replace. So the batch does not depend
    on the worker that makes it.

    Args:
        task: The task.
        row: The sample's place in the batch.
        index: The sample's index.
    """

    def __init__(self, task: Task, row: int, index: Any) -> None:
        self._task = task
        self._row = row
        self._choices = [[part] for part in task_parts(task, row, index)]
        if task.spares is not None:
            self._choices[0] += map(PartChoice, task.spares[row])
        if task.partners is not None:
            for choices, partner in zip(self._choices[1:], task.partners[row], strict=True):
                choices += [PartChoice(*spare, partner.mix) for spare in partner.spares]
        self._failures: list[list[BadSample]] = [[] for _ in self._choices]

    def add(self, error: Exception, parts: list[PartChoice], number: int, file: str | None) -> None:
        """Record the failure of one of these parts."""
        key = self._task.key
        self._failures[number].append(
            BadSample(
                batch=self._task.number,
                row=self._row,
                position=None if key is None else key.first + self._row,
                index=parts[number].dataset_index,
                partner_of=None if number == 0 else parts[0].dataset_index,
                file=file,
                error=type(error).__name__,
                message=text_of(error),
            )
        )

    def next_parts(self) -> list[PartChoice]:
        """Return the parts of the next attempt, or an empty list if all choices for a part have failed."""
        parts = [self._next_choice(number) for number in range(len(self._choices))]
        present_parts = [part for part in parts if part is not None]
        return present_parts if len(present_parts) == len(parts) else []

    def records(self) -> list[BadSample]:
        """Return the records of all failures, with the indices that replaced them."""
        records = []
        for number, failures in enumerate(self._failures):
            choice = self._next_choice(number)
            replaced_by = None if choice is None else choice.dataset_index
            records += [replace(record, replaced_by=replaced_by) for record in failures]
        return records

    def _next_choice(self, number: int) -> PartChoice | None:
        choices = self._choices[number]
        num_failures = len(self._failures[number])
        return choices[num_failures] if num_failures < len(choices) else None
