"""Times of single transforms, measured in this process on a few training batches."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from lit_loader.datamodules import LoaderDataModule
from lit_loader.transforms.extra_transform import ExtraTransform

__all__ = ["measure_transforms"]


def measure_transforms(datamodule: LoaderDataModule, seconds: float) -> dict[str, float]:
    """Load training batches without workers, and return the seconds per sample in each class of transforms.

    A class counts without the transforms that it calls. Functions outside of the presets' ``extra_before`` and
    ``extra_after`` do not count, and lit_loader's transforms count only after an image is decoded.

    Args:
        datamodule: The data module.
        seconds: Duration after which no further batch is loaded.

    Returns:
        Seconds by the name of the class, the slowest first.
    """
    original_workers = datamodule.workers
    datamodule.workers = replace(original_workers, num_workers=0, prefetch_factor=None)
    try:
        loader = datamodule.train_dataloader()
        begin_s = time.perf_counter()
        with _timed_modules() as seconds_by_name:
            for _ in loader:
                if time.perf_counter() - begin_s > seconds:
                    break
        num_samples = max(1, loader.stats().num_samples)
    finally:
        datamodule.teardown()  # closes the loader
        datamodule.workers = original_workers
    slowest_first = sorted(seconds_by_name.items(), key=lambda item: -item[1])
    return {name: seconds_of_class / num_samples for name, seconds_of_class in slowest_first}


@contextmanager
def _timed_modules() -> Iterator[dict[str, float]]:
    """Measure all calls of modules in a block, and yield the seconds by the name of the class."""
    seconds_by_name: dict[str, float] = defaultdict(float)
    # Start of each open call, and the seconds in the modules that it called.
    calls: list[tuple[float, float]] = []

    def begin(module: nn.Module, inputs: Any) -> None:
        calls.append((time.perf_counter(), 0.0))

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        start_s, inner_s = calls.pop()
        duration_s = time.perf_counter() - start_s
        seconds_by_name[_name(module)] += duration_s - inner_s
        if calls:
            outer_start_s, outer_inner_s = calls[-1]
            calls[-1] = (outer_start_s, outer_inner_s + duration_s)

    # After an error in a transform, the next sample is loaded.
    handles = [register_module_forward_pre_hook(begin), register_module_forward_hook(end, always_call=True)]
    try:
        yield seconds_by_name
    finally:
        for handle in handles:
            handle.remove()


def _name(module: nn.Module) -> str:
    # The wrapper of a user's transform, which may be a plain function.
    transform = module.transform if isinstance(module, ExtraTransform) else module
    return str(getattr(transform, "__name__", type(transform).__name__))
