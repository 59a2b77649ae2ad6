"""Backends of the parity tests, and functions that observe and compare two loaders.

A case is observed twice, with torch's loader and with lit_loader's: the batches of its epochs, every error at the
position of its batch, every warning, the lengths, and the states of all generators afterwards.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from lit_loader import DataLoader

LIMIT = 1000  # events of an epoch, so that an endless loader is cut, for both classes


@dataclass(frozen=True)
class Backend:
    """Arguments that select workers. Torch has no worker threads, so it uses forks for the same case."""

    name: str
    torch: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)

    @property
    def num_workers(self) -> int:
        return int(self.torch.get("num_workers", 0))

    @property
    def both(self) -> list[tuple[type, dict[str, Any]]]:
        """Torch's class and lit_loader's, each with its arguments for this backend."""
        return [(TorchDataLoader, dict(self.torch)), (DataLoader, dict(self.ours))]


_FORK = {"num_workers": 2, "multiprocessing_context": "fork"}
_KEPT = {**_FORK, "persistent_workers": True}
_THREAD = {"num_workers": 2, "worker_method": "thread"}

INLINE = Backend("inline")
FORK = Backend("fork", _FORK, _FORK)
KEPT = Backend("fork, persistent", _KEPT, _KEPT)
THREAD = Backend("thread", _FORK, _THREAD)
KEPT_THREAD = Backend("thread, persistent", _KEPT, {**_THREAD, "persistent_workers": True})


def each_of(*backends: Backend) -> Any:
    """Run a test on each backend."""
    return pytest.mark.parametrize("backend", backends, ids=lambda backend: backend.name)


EVERY = (INLINE, FORK, KEPT, THREAD, KEPT_THREAD)
BREADTH = (INLINE, KEPT, KEPT_THREAD)  # two epochs for one start of workers
WORKERS = (FORK, THREAD)
everywhere = each_of(INLINE, FORK, KEPT, THREAD)


def described(value: Any) -> Any:
    """Return a batch with the type of everything in it, as plain values that can be compared."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, torch.Tensor):
        return (name, *_described_tensor(value))
    if isinstance(value, np.ndarray | np.generic):
        return (name, str(value.dtype), value.shape, str(value.tolist()))
    if isinstance(value, Mapping):
        return (name, [(key, described(item)) for key, item in value.items()], _attributes(value))
    if isinstance(value, str | bytes | range):
        return (name, value)
    if isinstance(value, Sequence):
        return (name, [described(item) for item in value], _attributes(value))
    return (name, repr(value))


def _described_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    facts = (str(tensor.dtype), str(tensor.layout), str(tensor.device), tensor.requires_grad, _attributes(tensor))
    if tensor.is_nested:
        return (*facts, [described(part) for part in tensor.unbind()])
    if tensor.layout is torch.sparse_coo:
        return (*facts, tuple(tensor.shape), tensor.is_coalesced(), str(tensor.to_dense().tolist()))
    if tensor.layout is not torch.strided:
        return (*facts, tuple(tensor.shape), str(tensor.to_dense().tolist()))
    if tensor.is_quantized:
        return (*facts, str(tensor.qscheme()), tuple(tensor.shape), str(tensor.dequantize().tolist()))
    return (*facts, tuple(tensor.shape), str(tensor.tolist()))  # text, because nan is not nan


def _attributes(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return []  # internals, with a number that is unique in the process
    return [(key, repr(item)) for key, item in sorted(getattr(value, "__dict__", {}).items()) if key != "data"]


SAMPLE_NOTE = re.compile("sample |one of the samples ")


def error_event(error: BaseException) -> tuple[str, str, str]:
    """Return an error's type and message; of one with a worker's traceback, its first line and its last.

    The line in which lit_loader names the sample is left out: `test_deviations.py` has it.
    """
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    text = text.replace("worker thread", "worker process")
    if (match := re.search(r"Caught \w+ in .*", text)) is not None:
        lines = [line for line in text.strip().splitlines() if not SAMPLE_NOTE.match(line)]
        text = f"{match.group()} ... {lines[-1]}"
    return ("raised", type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x", text))


def without_frames(error: Exception) -> Exception:
    """Return the error without its frames, which refer to torch's iterator in a cycle: its workers would end late."""
    error.__context__ = None
    return error.with_traceback(None)


def error_of(function: Callable[..., Any], *arguments: Any) -> Exception:
    """Return the error that a call raises."""
    try:
        function(*arguments)
    except Exception as error:
        return without_frames(error)
    raise AssertionError("nothing was raised")


def events(iterator: Iterator[Any], *, ends: int = 2) -> list[Any]:
    """Return batches, errors and ends of an iterator, until it has ended ``ends`` times."""
    actual: list[Any] = []
    while len(actual) < LIMIT and actual.count("end") < ends:
        try:
            actual.append(described(next(iterator)))
        except StopIteration as end:
            without_frames(end)
            actual.append("end")
        except Exception as error:
            actual.append(error_event(without_frames(error)))
    return actual


def length(thing: Any) -> Any:
    try:
        return len(thing)
    except Exception as error:
        return error_event(error)


def seed_everything() -> None:
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)


def generators() -> tuple[Any, ...]:
    """Return the state of every process-wide generator."""
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


def same_for_both(backend: Backend, show: Callable[..., Any], **lit_loader_arguments: Any) -> Any:
    """Assert that ``show(class, arguments)`` returns the same for torch's class and lit_loader's, and return it.

    Args:
        backend: Its arguments are passed to ``show``.
        show: Called once for each class.
        lit_loader_arguments: Further arguments of lit_loader's class, such as a seed.
    """
    (torch_class, torch_arguments), (our_class, our_arguments) = backend.both
    expected = show(torch_class, torch_arguments)
    assert show(our_class, our_arguments | lit_loader_arguments) == expected
    return expected


Make = Callable[[], tuple[Any, dict[str, Any]]]


def observed(kind: type, workers: dict[str, Any], make: Make, *, num_epochs: int = 2) -> dict[str, Any]:
    """Return everything that can be observed of a loader: batches, lengths, warnings and states of generators.

    Args:
        kind: Torch's class, or lit_loader's.
        workers: Arguments that choose the backend.
        make: Returns a new dataset and further arguments; called after all generators were seeded.
        num_epochs: Number of iterators.
    """
    seed_everything()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset, arguments = make()
        loader = kind(dataset, **arguments, **workers)
        lengths = [length(loader)]
        epochs = []
        for _ in range(num_epochs):
            iterator = iter(loader)
            lengths.append(length(iterator))
            epochs.append(events(iterator))
        lengths.append(length(loader))
        generator = arguments.get("generator")
        actual = {
            "epochs": epochs,
            "lengths": lengths,
            "generators": generators(),
            "generator": None if generator is None else generator.get_state().tolist(),
        }
        close(loader)
        del iterator, loader
    actual["warnings"] = [_warned(warning) for warning in caught if not _is_unrelated(warning)]
    return actual


def close(loader: Any) -> None:
    """End a loader's persistent workers, torch's too."""
    loader._iterator = None
    if isinstance(loader, DataLoader):
        loader.close()


def _warned(warning: warnings.WarningMessage) -> tuple[str, str]:
    return warning.category.__name__, re.sub(r"0x[0-9a-f]+", "0x", str(warning.message))


def _is_unrelated(warning: warnings.WarningMessage) -> bool:
    """Return True for warnings about processes (their number, forks next to threads) and types of tensors."""
    unrelated = ("worker processes in total", "is multi-threaded", "quantize", "prototype", "Sparse invariant")
    return any(text in str(warning.message) for text in unrelated)


def assert_alike(make: Make, *backends: Backend, num_epochs: int = 2) -> dict[str, Any]:
    """Assert that observations of both loaders are equal on each backend.

    Torch's loader is observed once for all backends with the same arguments of torch's.

    Returns:
        The observations of torch's loader on the last backend, for further assertions.
    """
    observations: dict[str, dict[str, Any]] = {}
    expected: dict[str, Any] = {}
    for backend in backends:
        if str(backend.torch) not in observations:
            observations[str(backend.torch)] = observed(TorchDataLoader, backend.torch, make, num_epochs=num_epochs)
        expected = observations[str(backend.torch)]
        ours = observed(DataLoader, backend.ours, make, num_epochs=num_epochs)
        for part, value in expected.items():
            assert ours[part] == value, f"{part} on {backend.name}"
    return expected


def both_raise(kind: type[BaseException], make: Callable[[type], Any]) -> tuple[str, str]:
    """Return the messages of the error that ``make(class)`` raises for torch's class and lit_loader's."""
    messages = []
    for loader in (TorchDataLoader, DataLoader):
        with pytest.raises(kind) as caught:
            make(loader)
        assert type(caught.value) is kind
        messages.append(str(caught.value))
    return messages[0], messages[1]
