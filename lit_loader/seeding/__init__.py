"""Randomness by key: a hash seeds the generators for every sample, batch and worker.

Problem: if a worker is seeded once, the random numbers of a sample depend on the worker that makes it and on the
samples that the worker made before. Mechanism: the generators are seeded anew for every sample, from a hash of (seed,
epoch, position in the global order), so every worker computes the same bits. Not covered: private generators of a
dataset, which should draw from `sample_rng` instead.
"""

from __future__ import annotations

from lit_loader.seeding.generators import (
    KeyedGenerators,
    SampleRng,
    call_uncollected,
    current_batch,
    current_epoch,
    is_duplicate,
    preserved_generators,
    sample_key,
    sample_rng,
    seed_generators,
    seed_process,
    seed_worker,
)
from lit_loader.seeding.keys import EpochKeys, Key, RngPurpose, hash_u64, key64
from lit_loader.seeding.shared_draws import SharedDrawCheck
from lit_loader.seeding.thread_scope import ThreadScope, get_worker_info, rand, set_worker_info

__all__ = [
    "EpochKeys",
    "Key",
    "KeyedGenerators",
    "RngPurpose",
    "SampleRng",
    "SharedDrawCheck",
    "ThreadScope",
    "call_uncollected",
    "current_batch",
    "current_epoch",
    "get_worker_info",
    "hash_u64",
    "is_duplicate",
    "key64",
    "preserved_generators",
    "rand",
    "sample_key",
    "sample_rng",
    "seed_generators",
    "seed_process",
    "seed_worker",
    "set_worker_info",
]
