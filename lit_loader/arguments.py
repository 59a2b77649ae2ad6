"""Checks of the loader's arguments, in addition to torch's own."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from lit_loader.engine import OnBadSample, Resume, unwrap_subset
from lit_loader.lightning_compat import unwrapped
from lit_loader.samplers import OrderSampler

_WORKER_METHODS = ("multiprocessing", "thread")


def check_batch_sampler(batch_sampler: Any) -> None:
    """Refuse a batch sampler that iterates an `OrderSampler` by itself, without the loader's seed and rank."""
    batches = unwrapped(batch_sampler)
    inner = getattr(batches, "sampler", None)
    if isinstance(inner, OrderSampler) and type(batches) is not BatchSampler:
        raise ValueError(
            f"batch_sampler={type(batches).__name__} iterates {type(inner).__name__}, which neither this loader's "
            "seed nor its rank would reach; pass sampler= and batch_size=, or torch's BatchSampler over it"
        )


def check_arguments(
    dataset: Any,
    seed: int | None,
    rank: int | None,
    world_size: int | None,
    generator: torch.Generator | None,
) -> None:
    """Refuse DataPipes, and a seed, rank, world size or generator that do not fit together."""
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        raise TypeError(
            f"dataset={type(dataset).__name__} is a DataPipe, which torch has deprecated and this loader does not "
            "run; pass a Dataset or an IterableDataset, or use torch's own DataLoader"
        )
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise TypeError(f"seed={seed!r} should be an int or None, got {type(seed).__name__}")
    if seed is not None and generator is not None:
        raise ValueError(f"generator= would have no effect beside seed={seed}; leave one of them out")
    if rank is None and world_size is None:
        return
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} and world_size={world_size} go together, with 0 <= rank < world_size")
    if seed is None:
        raise ValueError(
            f"rank={rank} and world_size={world_size} need seed=: without one every rank would draw an order of "
            "its own; pass the same seed on all ranks, or leave both out and use torch's DistributedSampler"
        )


def check_iterable_now(*, num_workers: int, prefetch_factor: int | None, timeout: float) -> None:
    """Refuse, as torch does when it is iterated, settings that cannot deliver a batch."""
    if num_workers > 0 and not prefetch_factor:
        raise AssertionError(f"prefetch_factor={prefetch_factor} must be greater than 0 for workers")
    if num_workers == 0 and timeout:
        raise AssertionError(f"timeout={timeout} needs workers; num_workers=0 requires timeout == 0")


def check_worker_method(worker_method: Any, multiprocessing_context: Any) -> None:
    """Refuse an unknown method, and a start method for threads."""
    if worker_method not in _WORKER_METHODS:
        raise ValueError(f"worker_method={worker_method!r} is unknown; it is one of {_WORKER_METHODS}")
    if worker_method == "thread" and multiprocessing_context is not None:
        raise ValueError(
            f"multiprocessing_context={multiprocessing_context!r} would have no effect on worker threads; leave it "
            'out, or use worker_method="multiprocessing"'
        )


def check_replacement(
    max_worker_restarts: int | None, hang_timeout_s: float | None, *, processes: bool, keyed: bool
) -> None:
    """Refuse settings of worker restarts and hangs without worker processes, or where samples cannot be made again."""
    most = max_worker_restarts
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
        raise ValueError(f"max_worker_restarts={most!r} must be an int of at least 0, or None")
    if most and not (processes and keyed):
        raise ValueError(
            f"max_worker_restarts={most} needs worker processes (num_workers > 0), seed= and a map dataset: only "
            "samples with keys of their own can be made again with the same bits; leave it out, or give a seed"
        )
    if hang_timeout_s is None:
        return
    if isinstance(hang_timeout_s, bool) or not 0 < hang_timeout_s < float("inf"):
        raise ValueError(f"hang_timeout_s={hang_timeout_s!r} must be a number of seconds above 0, or None")
    if not processes:
        raise ValueError(
            f"hang_timeout_s={hang_timeout_s} needs worker processes (num_workers > 0): neither a thread nor this "
            "process can be ended and replaced; leave it out"
        )


def check_policy(on_bad_sample: object, max_bad_samples: object) -> None:
    """Refuse an unknown policy, and a ``max_bad_samples`` that is out of range or has no effect.

    Raises:
        ValueError: If so.
    """
    if on_bad_sample not in get_args(OnBadSample):
        raise ValueError(
            f"on_bad_sample={on_bad_sample!r} is unknown; it is one of {list(get_args(OnBadSample))}"
        )
    if max_bad_samples is None:
        return
    if not isinstance(max_bad_samples, int) or isinstance(max_bad_samples, bool) or max_bad_samples < 0:
        raise ValueError(f"max_bad_samples={max_bad_samples!r} must be an int of at least 0, or None")
    if on_bad_sample == "raise":
        raise ValueError(
            f'max_bad_samples={max_bad_samples} would have no effect beside on_bad_sample="raise", which ends at the '
            'first; leave it out, or give on_bad_sample="skip" or "substitute"'
        )


def check_bad_samples(
    policy: OnBadSample,
    max_bad_samples: int | None,
    dataset: Any,
    *,
    batched: bool,
    seeded: bool,
    sliced: bool,
) -> None:
    """Refuse a policy on bad samples that this kind of loader does not support.

    Args:
        policy: The loader's ``on_bad_sample``.
        max_bad_samples: The loader's.
        dataset: The loader's.
        batched: Whether it makes batches.
        seeded: Whether it has a seed.
        sliced: Whether its batches are sliced from an order.

    Raises:
        ValueError: If so.
    """
    check_policy(policy, max_bad_samples)
    if policy == "raise":
        return
    given = f'on_bad_sample="{policy}"'
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            f"{given} needs a map dataset: {type(dataset).__name__} is an IterableDataset, whose iteration an error "
            "ends; catch the error in its __iter__"
        )
    inner, _ = unwrap_subset(dataset, [])
    if getattr(inner, "__getitems__", None):
        raise ValueError(
            f"{given} needs samples that are made one by one: {type(inner).__name__} has __getitems__, whose error "
            "does not say which sample is bad; catch it there, or leave __getitems__ out"
        )
    if policy == "skip" and not batched:
        raise ValueError(
            f"{given} needs batches, which it shrinks, and batch_size=None makes none; give a batch_size, or "
            'on_bad_sample="substitute"'
        )
    if policy == "substitute" and not sliced:
        lacking = "this sampler is not one of lit_loader.samplers" if seeded else "there is no seed="
        raise ValueError(
            f"{given} draws replacements from a seeded order, and {lacking}; give seed= and a sampler of "
            'lit_loader.samplers (or shuffle=), or on_bad_sample="skip"'
        )


def check_resume(resume: object) -> None:
    """Refuse an unknown policy on states that do not fit.

    Raises:
        ValueError: If so.
    """
    if resume not in get_args(Resume):
        raise ValueError(f"resume={resume!r} is unknown; it is one of {list(get_args(Resume))}")
