"""A loader's policy on bad samples: what it refuses, and the pass that counts them."""

from __future__ import annotations

from typing import Final, get_args

from torch.utils.data import IterableDataset

from lit_loader.engine import BadSampleLog, OnBadSample, ReportingRun, unwrap_subset
from lit_loader.engine.bad_samples import Run
from lit_loader.planning import Loader, seen_indices
from lit_loader.resume import Progress

__all__ = ["MAX_BAD_SAMPLES", "check_bad_samples", "check_policy", "reporting_run"]

MAX_BAD_SAMPLES: Final = 100
"""How many bad samples an epoch may have on each rank, unless the loader is told another number."""


def check_policy(on_bad_sample: object, max_bad_samples: object) -> None:
    """Refuse an unknown policy, and a bound that is none or has nothing to bound.

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


def check_bad_samples(loader: Loader) -> None:
    """Refuse a policy that this loader cannot keep.

    Raises:
        ValueError: If so.
    """
    policy = loader.on_bad_sample
    check_policy(policy, loader.max_bad_samples)
    if policy == "raise":
        return
    given, dataset = f'on_bad_sample="{policy}"', loader.dataset
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
    if policy == "skip" and loader.batch_sampler is None:
        raise ValueError(
            f"{given} needs batches, which it shrinks, and batch_size=None makes none; give a batch_size, or "
            'on_bad_sample="substitute"'
        )
    if policy == "substitute" and loader._cut is None:
        lacking = (
            "there is no seed=" if loader.seed is None else "this sampler is not one of lit_loader.samplers"
        )
        raise ValueError(
            f"{given} draws replacements from a seeded order, and {lacking}; give seed= and a sampler of "
            'lit_loader.samplers (or shuffle=), or on_bad_sample="skip"'
        )


def reporting_run(loader: Loader, run: Run, progress: Progress) -> tuple[ReportingRun, BadSampleLog]:
    """Return a pass of a loader with its bad samples recorded, and the records."""
    most = MAX_BAD_SAMPLES if loader.max_bad_samples is None else loader.max_bad_samples
    log = BadSampleLog(epoch=progress.epoch, rank=loader._place[0], max_bad_samples=most)
    seen = seen_indices(loader.batch_sampler)
    return ReportingRun(run, log, num_batches=progress.num_batches, seen=seen), log
