"""A random life of one loader, every batch of which is compared with what no workers would have made."""

from __future__ import annotations

import gc
import random
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lit_loader import DataLoader
from tests.support.scheduled_set import Draws
from tests.support.toys import plain

_INLINE = threading.Lock()  # without workers, samples draw from the generators of the process


def step(iterator: Any) -> str | None:
    """Return what ``next()`` gives, as text: a batch, or which sample failed; None at the end."""
    try:
        return str(plain(next(iterator)))
    except StopIteration:
        return None
    except LookupError as error:
        return re.findall(r"sample \d+", str(error))[-1] + " failed"


@dataclass
class Life:
    """A loader, its live iterators and what they should give.

    Args:
        draw: Decides everything.
        method: How workers are made.
    """

    draw: random.Random
    method: str
    delivered: int = 0
    live: list[Any] = field(default_factory=list)
    next_epoch: int = 0

    def __post_init__(self) -> None:
        draw = self.draw
        length = draw.choice([1, 7, 24, 40])
        self.dataset = Draws(
            length,
            bad=draw.sample(range(length), draw.choice([0, 0, min(2, length)])),
            slow=draw.sample(range(length), min(3, length)),
            slow_s=0.005,
        )
        self.common = {"batch_size": draw.choice([1, 3, 8]), "shuffle": True, "seed": draw.randrange(100)}
        self.loader: Any = DataLoader(
            self.dataset,
            num_workers=draw.choice([1, 2, 3]),
            prefetch_factor=draw.choice([1, 2, 9]),
            persistent_workers=draw.random() < 0.7,
            in_order=draw.random() < 0.7,
            worker_method=self.method,
            **self.common,
        )
        self.references: dict[int, list[str]] = {}

    def reference(self, epoch: int) -> list[str]:
        """Return what an epoch gives without workers."""
        if epoch not in self.references:
            inline: Any = DataLoader(self.dataset, **self.common)
            inline.set_epoch(epoch)
            iterator = iter(inline)
            with _INLINE:
                self.references[epoch] = list(iter(lambda: step(iterator), None))
        return self.references[epoch]

    def advance(self) -> None:
        """Take a batch of a random iterator and compare it."""
        entry = self.draw.choice(self.live)
        if entry[1] is None:  # claimed by its first next()
            entry[1], self.next_epoch = self.next_epoch, self.next_epoch + 1
        iterator, epoch, found = entry
        expected = self.reference(epoch)
        got = step(iterator)
        if got is None:
            assert len(found) == len(expected), f"epoch {epoch} ended after {len(found)} of {len(expected)}"
            self.live.remove(entry)
            return
        found.append(got)
        self.delivered += 1
        if self.loader.in_order:
            assert got == expected[len(found) - 1], f"batch {len(found) - 1} of epoch {epoch}"
        else:
            assert not Counter(found) - Counter(expected), f"epoch {epoch} has no such batch"

    def act(self) -> None:
        """Do something."""
        draw, action = self.draw, self.draw.random()
        if not self.live or (action < 0.06 and len(self.live) < 3):
            self.live.append([iter(self.loader), None, []])
        elif action < 0.09:
            self.live.pop(draw.randrange(len(self.live)))
        elif action < 0.10:
            cycle: list[Any] = [self.live.pop(draw.randrange(len(self.live)))]
            cycle.append(cycle)  # collected at any time
        elif action < 0.12:
            self.next_epoch = draw.randrange(6)
            draw.choice([self.loader, self.loader.sampler]).set_epoch(self.next_epoch)
        elif action < 0.13:
            self.loader.close()
            self.live.clear()
        elif action < 0.14 and self.loader.persistent_workers:
            self.loader.prefetch_factor = draw.choice([1, 2, 9])
        else:
            for _ in range(draw.randrange(1, 6)):
                if self.live:
                    self.advance()

    def end(self) -> None:
        """Leave it."""
        self.live.clear()
        if self.draw.random() < 0.5:
            self.loader.close()
        del self.loader
        gc.collect()


def live(seed: int, method: str, *, steps: int, lives: int) -> int:
    """Lead some random lives; return how many batches were compared."""
    compared = 0
    threshold = gc.get_threshold()
    try:
        for number in range(lives):
            draw = random.Random(f"{seed} {method} {number}")
            if threading.current_thread() is threading.main_thread():
                gc.set_threshold(draw.choice([13, 101, 700]))  # finalizers in the middle of everything
            life = Life(draw, method)
            for _ in range(steps):
                life.act()
            life.end()
            compared += life.delivered
    finally:
        if threading.current_thread() is threading.main_thread():
            gc.set_threshold(*threshold)
    return compared
