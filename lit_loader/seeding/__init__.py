"""Randomness by key: every sample, batch and worker gets its generators from a hash, never from a stream.

Problem: a worker that seeds once and then draws gives a sample random bits that depend on which worker
took it and on what that worker did before. Mechanism: the generators are seeded anew for every sample,
from a hash of (seed, epoch, position in the global order), so any worker computes the same bits.
Not covered: generators that a dataset owns privately; they can be had from `sample_rng` instead.
"""

from __future__ import annotations

from lit_loader.seeding.current import SampleRng, is_duplicate, sample_rng
from lit_loader.seeding.hashing import hash_u64, key64, uniform
from lit_loader.seeding.keyed_generators import KeyedGenerators
from lit_loader.seeding.keys import EpochKeys, Key, Moment
from lit_loader.seeding.process import (
    preserved_generators,
    seed_generators,
    seed_process,
    seed_worker,
    worker_words,
)
from lit_loader.seeding.scope import ThreadScope
from lit_loader.seeding.shared_draws import SharedDraws, cpu_times_of_others, others_want_to_run
from lit_loader.seeding.thread_functions import functions_answer_for_threads, set_worker_info
from lit_loader.seeding.worker_rng import WorkerRng

__all__ = [
    "EpochKeys",
    "Key",
    "KeyedGenerators",
    "Moment",
    "SampleRng",
    "SharedDraws",
    "ThreadScope",
    "WorkerRng",
    "cpu_times_of_others",
    "functions_answer_for_threads",
    "hash_u64",
    "is_duplicate",
    "key64",
    "others_want_to_run",
    "preserved_generators",
    "sample_rng",
    "seed_generators",
    "seed_process",
    "seed_worker",
    "set_worker_info",
    "uniform",
    "worker_words",
]
