"""Guarantee: a worker thread is a worker: its own info, seed, generators and one intra-op thread."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from torch.utils.data import IterableDataset
from torch.utils.data._utils.worker import _generate_state

from lit_loader import DataLoader, get_worker_info
from tests.support.in_threads import Calls, threads
from tests.support.toys import Stream, plain

seeds = pytest.mark.parametrize("seed", [None, 1])


@seeds
def test_each_thread_has_a_worker_info_of_its_own(seed):
    met = threading.Barrier(2)

    def info(index):
        if index < 2:
            met.wait(20)
        return get_worker_info(), torch_data.get_worker_info(), threading.current_thread().name

    dataset = Calls(info)
    actual = [sample for (sample,) in threads(dataset, seed=seed)]
    assert {sample[0].id for sample in actual} == {0, 1}
    for info, torch_info, name in actual:
        assert torch_info is None
        assert name == f"lit_loader-worker-{info.id}"
        assert info.num_workers == 2
        assert info.dataset is dataset
    assert len({sample[0].seed - sample[0].id for sample in actual}) == 1
    assert get_worker_info() is None


def test_the_info_is_there_in_worker_init_fn_and_names_its_worker():
    actual = []
    loader = threads(range(4), num_workers=3, worker_init_fn=lambda w: actual.append((w, get_worker_info().id)))
    assert len(list(loader)) == 4
    assert sorted(actual) == [(0, 0), (1, 1), (2, 2)]


def test_threads_that_a_sample_starts_and_those_of_others_have_none():
    def custom(index):
        actual = []
        other = threading.Thread(target=lambda: actual.append(get_worker_info()))
        other.start()
        other.join()
        return actual[0]

    assert [sample for (sample,) in threads(Calls(custom))] == [None] * 8
    assert custom(0) is None


needs_rng = pytest.mark.skipif(
    "rng" not in getattr(torch_data._utils.worker.WorkerInfo, "__dataclass_fields__", {}),
    reason="this torch's worker info has no generators",
)


@needs_rng
def test_the_info_has_generators_seeded_for_its_worker():
    def draws(index):
        info = get_worker_info()
        return info.id, info.seed, info.rng.random_generator.random(), info.rng.numpy_generator.random()

    assert get_worker_info() is None
    for (sample,) in threads(Calls(draws, 2), num_workers=2):
        worker, seed, python, numpy = sample
        assert python == random.Random(seed).random()
        assert numpy == np.random.RandomState(_generate_state(seed - worker, worker)).random()


@needs_rng
def test_with_a_seed_the_infos_generators_draw_what_worker_processes_would():
    def draws(index):
        info = get_worker_info()
        rng = None if info is None else info.rng
        return [
            *((rng.random_generator if rng else random).random() for _ in range(2)),
            *((rng.numpy_generator if rng else np.random).random() for _ in range(2)),
            torch.rand(1).item(),
            torch.rand(1, generator=rng.torch_generator if rng else None).item(),
            torch.rand(1, generator=torch.thread_safe_generator()).item(),
        ]

    expected = list(threads(Calls(draws), num_workers=0, seed=2))
    assert list(threads(Calls(draws), num_workers=3, seed=2)) == expected
    assert list(threads(Calls(draws), worker_method="multiprocessing", seed=2)) == expected


@needs_rng
def test_a_dataset_that_keeps_the_infos_torch_generator_keeps_its_bits():
    local = threading.local()

    def draws(index):
        info = get_worker_info()
        if not hasattr(local, "generator"):
            local.generator = info and info.rng.torch_generator
        return torch.rand(1, generator=local.generator).item()

    expected = list(threads(Calls(draws), num_workers=0, seed=2))
    del local.generator
    assert list(threads(Calls(draws), num_workers=2, seed=2)) == expected


def test_iterable_datasets_are_sharded_by_the_info():
    class Sharded(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            yield from range(info.id, 11, info.num_workers)

    for seed in (None, 3):
        actual = [sample for (sample,) in threads(Sharded(), num_workers=3, seed=seed)]
        assert sorted(actual) == list(range(11))
        assert actual[:6] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("dataset", [Calls(lambda i: torch.rand(2)), Stream()], ids=["map", "stream"])
def test_threads_draw_what_worker_processes_would(dataset, seed):
    def epochs(method):
        torch.manual_seed(3)
        settings = {"num_workers": 2, "persistent_workers": True, "worker_method": method, "seed": seed}
        with DataLoader(dataset, 3, **settings) as loader:
            return [[plain(batch) for batch in loader] for _ in range(2)]

    assert epochs("thread") == epochs("multiprocessing")


@pytest.fixture
def three_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def in_a_new_thread():
    actual = []
    other = threading.Thread(target=lambda: actual.append(torch.get_num_threads()))
    other.start()
    other.join()
    return actual[0]


@pytest.mark.usefixtures("three_threads")
def test_a_worker_has_one_intra_op_thread_and_others_keep_theirs():
    loader = threads(Calls(lambda index: torch.get_num_threads()), persistent_workers=True)
    for _ in range(2):
        assert [sample for (sample,) in loader] == [1] * 8
        assert torch.get_num_threads() == 3
        assert in_a_new_thread() == 3
    torch.set_num_threads(2)
    assert [sample for (sample,) in loader] == [1] * 8
    assert torch.get_num_threads() == 2
    loader.close()


@pytest.mark.usefixtures("three_threads")
def test_threads_that_start_threads_leave_the_setting_of_the_process_alone():
    def nested(index):
        list(threads(Calls(lambda i: i, 2)))
        return torch.get_num_threads()

    assert [sample for (sample,) in threads(Calls(nested, 4))] == [1] * 4
    assert in_a_new_thread() == 3
    assert torch.get_num_threads() == 3


class OnMeta(IterableDataset):
    """Holds a mode of torch's across its samples."""

    def __iter__(self):
        with torch.device("meta"):
            for _ in range(3):
                yield torch.empty(1).device.type


def test_a_stream_keeps_its_torch_mode_between_samples():
    assert list(threads(OnMeta(), num_workers=1, batch_size=None)) == ["meta"] * 3
