"""Checks of the loader's arguments, in addition to torch's own."""

from __future__ import annotations

from typing import Any, SupportsIndex, get_args

import torch
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from lit_loader.engine import OnBadSample, WorkerMethod, unwrap_subset
from lit_loader.errors import SettingError
from lit_loader.loader.lightning import unwrapped
from lit_loader.mixing import PartnerDataset
from lit_loader.samplers import GroupedSampler, OrderSampler, SubsetRandomSampler


def check_choice(name: str, value: object, choices: Any) -> None:
    """Refuse a value that is not one of the choices of a ``Literal``.

    Raises:
        ValueError: If it is not.
    """
    if value not in get_args(choices):
        raise ValueError(f"{name}={value!r} is unknown; it is one of {list(get_args(choices))}")


def _check_bound(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ValueError(f"{name}={value!r} must be an int of at least 0, or None")


def check_batch_sampler(batch_sampler: Any) -> None:
    """Refuse a batch sampler that iterates an `OrderSampler`, which would get neither seed nor rank."""
    batches = unwrapped(batch_sampler)
    inner = getattr(batches, "sampler", None)
    if isinstance(inner, OrderSampler) and type(batches) is not BatchSampler:
        raise ValueError(
            f"batch_sampler={type(batches).__name__} iterates {type(inner).__name__}, which would get neither this "
            "loader's seed nor its rank; pass sampler= and batch_size=, or torch's BatchSampler over it"
        )


def check_sampler_length(dataset: Any, sampler: Any, batch_sampler: Any) -> None:
    """Refuse an `OrderSampler` that was created for another number of samples than the dataset has.

    Torch's own samplers and datasets without a length pass.

    Raises:
        ValueError: If the numbers differ. A `SubsetRandomSampler` may end before the dataset does.
    """
    argument = "sampler"
    if batch_sampler is not None:
        argument = "batch_sampler"
        sampler = getattr(unwrapped(batch_sampler), "sampler", None)
    if not isinstance(sampler, OrderSampler) or isinstance(dataset, IterableDataset):
        return
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        return
    inner = sampler.sampler if isinstance(sampler, GroupedSampler) else sampler
    is_subset = isinstance(inner, SubsetRandomSampler) and inner.num_indices < length
    if inner.num_indices != length and not is_subset:
        raise ValueError(
            f"{argument}={type(sampler).__name__} was created for {inner.num_indices} samples, but the dataset has "
            f"{length}; create it for this dataset, or select the samples to draw from with torch.utils.data.Subset or "
            "sampler=SubsetRandomSampler(indices)"
        )


def check_arguments(
    dataset: Any,
    seed: int | None,
    rank: int | None,
    world_size: int | None,
    generator: torch.Generator | None,
    num_workers: int,
    worker_method: WorkerMethod,
    context: Any,
) -> None:
    """Refuse DataPipes, and arguments that do not fit together or would have no effect."""
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        raise TypeError(f"dataset={type(dataset).__name__} is a DataPipe; pass a Dataset or IterableDataset")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise TypeError(f"seed={seed!r} should be an int or None, got {type(seed).__name__}")
    # Numpy's integers are accepted as well.
    if not isinstance(num_workers, SupportsIndex):
        raise TypeError(
            f"num_workers={num_workers!r} should be an int, got {type(num_workers).__name__}; data modules also take "
            "'auto', and `lit-loader tune` finds the fastest number"
        )
    if seed is not None and generator is not None:
        raise ValueError(f"generator= would have no effect with seed={seed}; leave one of them out")
    check_choice("worker_method", worker_method, WorkerMethod)
    if worker_method == "thread" and context is not None:
        raise ValueError(f"multiprocessing_context={context!r} has no effect on worker threads; leave it out")
    if rank is None and world_size is None:
        return
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} and world_size={world_size} must both be set, with 0 <= rank < world_size")
    if seed is None:
        raise ValueError(
            f"rank={rank} and world_size={world_size} need seed=, the same on all ranks; pass it, or leave them out"
        )


def check_replacement(
    max_worker_restarts: int | None, hang_timeout_s: float | None, *, processes: bool, keyed: bool
) -> None:
    """Refuse settings of worker restarts and hangs without worker processes, or where samples cannot be made again."""
    _check_bound("max_worker_restarts", max_worker_restarts)
    if max_worker_restarts and not (processes and keyed):
        raise ValueError(
            f"max_worker_restarts={max_worker_restarts} needs worker processes (num_workers > 0), seed= and a map "
            "dataset, whose samples can be made again with the same bits; leave it out"
        )
    if hang_timeout_s is None:
        return
    if isinstance(hang_timeout_s, bool | str) or not 0 < hang_timeout_s < float("inf"):
        raise ValueError(f"hang_timeout_s={hang_timeout_s!r} must be a number of seconds above 0, or None")
    if not processes:
        raise ValueError(f"hang_timeout_s={hang_timeout_s} needs worker processes, num_workers > 0; leave it out")


def check_policy(on_bad_sample: object, max_bad_samples: object) -> None:
    """Refuse an unknown policy, and a ``max_bad_samples`` that is out of range or has no effect.

    Raises:
        ValueError: If one of them is refused.
    """
    check_choice("on_bad_sample", on_bad_sample, OnBadSample)
    _check_bound("max_bad_samples", max_bad_samples)
    if max_bad_samples is not None and on_bad_sample == "raise":
        raise ValueError(
            f'max_bad_samples={max_bad_samples} would have no effect with on_bad_sample="raise"; leave one of them out'
        )


def check_bad_samples(
    policy: OnBadSample, max_bad_samples: int | None, dataset: Any, *, batched: bool, sliced: bool
) -> None:
    """Refuse a policy on bad samples that this kind of loader does not support.

    Args:
        policy: The loader's ``on_bad_sample``.
        max_bad_samples: The loader's ``max_bad_samples``.
        dataset: The loader's dataset.
        batched: True if the loader makes batches.
        sliced: True if its batches are sliced from the order of an `OrderSampler`.

    Raises:
        ValueError: If the policy is not supported.
    """
    check_policy(policy, max_bad_samples)
    if policy == "raise":
        return
    setting = f'on_bad_sample="{policy}"'
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            f"{setting} needs a map dataset, got the IterableDataset {type(dataset).__name__}; catch errors in its "
            "__iter__"
        )
    inner, _ = unwrap_subset(dataset, [])
    if getattr(inner, "__getitems__", None):
        raise ValueError(
            f"{setting} needs samples made one by one: {type(inner).__name__} has __getitems__; catch the error there"
        )
    if policy == "skip" and not batched:
        raise ValueError(f"{setting} needs batches, and batch_size=None makes none; pass a batch_size")
    if policy == "substitute" and not sliced:
        raise ValueError(f"{setting} needs a seeded order; pass seed= and a sampler of lit_loader.samplers")


def check_mixing(dataset: Any, seed: int | None, sampler: Any, batch_sampler: Any, *, sliced: bool) -> None:
    """Refuse a dataset that mixes samples in a loader that cannot draw their partners.

    Args:
        dataset: The loader's dataset.
        seed: The loader's seed.
        sampler: The loader's argument.
        batch_sampler: The loader's argument.
        sliced: True if its batches are sliced from the order of an `OrderSampler`.

    Raises:
        ValueError: The loader has no seed or no order, or a mix would draw images that a `Subset` leaves out.
    """
    inner, _ = unwrap_subset(dataset, [])
    if not isinstance(inner, PartnerDataset) or not inner.mixing:
        return
    name = type(inner).__name__
    if seed is None:
        rule = f"gives the samples of {name} no partners, because those are drawn from the seed"
        raise SettingError("seed", None, rule, settings={"seed": ...})
    if not sliced:
        argument = f"sampler={type(sampler).__name__}"
        if batch_sampler is not None:
            argument = f"batch_sampler={type(batch_sampler).__name__}"
        raise ValueError(
            f"{argument} has no order from which partners of the samples of {name} could be drawn; pass one of "
            "lit_loader.samplers as sampler="
        )
    if inner is dataset:
        return
    for number, mix in enumerate(inner.mixing):
        if inner.partner_pool(number) is not None:
            raise ValueError(
                f"dataset={type(dataset).__name__} selects images of {name}, but {type(mix).__name__} draws partners "
                f"from all of them; split the data before {name} is created, or leave out {type(mix).__name__}"
            )
