"""The next epoch is begun before this one ends, kept for the iterator that claims it, or dropped if it does not fit."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from functools import partial

import psutil
import pytest

from lit_loader import DataLoader, RandomSampler, SequentialSampler
from lit_loader.collate.default import default_collate, default_convert
from tests.support.scheduled_set import Counted, Draws
from tests.support.toys import plain

METHODS = pytest.mark.parametrize("method", ["multiprocessing", "thread"])


def make_loader(dataset, **arguments):
    defaults = {"batch_size": 2, "num_workers": 2, "seed": 1, "persistent_workers": True}
    return DataLoader(dataset, **{**defaults, **arguments})


def epoch(number, dataset=None, **arguments):
    inline = DataLoader(dataset or Draws(), **{"batch_size": 2, "shuffle": True, "seed": 1, **arguments})
    inline.set_epoch(number)
    return [plain(batch) for batch in inline]


def taken(iterator, count):
    return [next(iterator) for _ in range(count)]


def batches(iterable):
    return [plain(batch) for batch in iterable]


@METHODS
class TestTheNextEpochIsBegun:
    def test_before_the_consumer_has_let_go_of_the_last_batch(self, method, tmp_path):
        dataset = Counted(tmp_path / "made")
        with make_loader(dataset, worker_method=method) as loader:
            iterator = iter(loader)
            taken(iterator, 8)  # all of it; the end is not asked for yet
            assert dataset.settled(28) == 28  # 16 of this epoch, six batches of the next

    def test_and_no_more_is_held_than_prefetch_allows_at_any_time(self, method, tmp_path):
        dataset = Counted(tmp_path / "made", 10)
        delivered = 0
        with make_loader(dataset, worker_method=method, batch_size=1) as loader:
            for _ in range(4):
                for _ in loader:
                    delivered += 1
                    assert dataset.made - delivered <= 6
            assert dataset.settled(delivered + 6) == delivered + 6

    def test_and_used_bit_for_bit_without_being_made_again(self, method, tmp_path):
        with make_loader(Draws(), worker_method=method, shuffle=True) as loader:
            for number in range(4):
                assert batches(loader) == epoch(number)
        dataset = Counted(tmp_path / "made")
        with make_loader(dataset, worker_method=method) as loader:
            for _ in range(3):
                list(loader)
            assert dataset.settled(3 * 16 + 12) == 3 * 16 + 12

    def test_out_of_order_too(self, method):
        with make_loader(Draws(), worker_method=method, shuffle=True, in_order=False) as loader:
            for number in range(4):
                assert sorted(map(str, batches(loader))) == sorted(map(str, epoch(number)))

    def test_epoch_shorter_than_the_prefetch_bound_is_complete(self, method):
        with make_loader(Draws(2), worker_method=method, shuffle=True) as loader:
            for number in range(5):
                assert batches(loader) == epoch(number, Draws(2))

    def test_for_samples_that_are_not_batched(self, method, tmp_path):
        dataset = Counted(tmp_path / "made", 8)
        with make_loader(dataset, worker_method=method, batch_size=None) as loader:
            for count in range(1, 4):
                assert list(loader) == list(range(8))
                assert dataset.settled(8 * count + 6) == 8 * count + 6


@METHODS
class TestTheNextEpochIsDropped:
    def jump(self, method, name_epoch, **arguments):
        """Return the batches after the first epoch, if another epoch than the next was set."""
        with make_loader(Draws(), worker_method=method, shuffle=True, **arguments) as loader:
            list(loader)
            name_epoch(loader)
            return batches(loader), batches(loader)

    def test_when_set_epoch_names_another(self, method):
        assert self.jump(method, lambda loader: loader.set_epoch(7)) == (epoch(7), epoch(8))
        assert self.jump(method, lambda loader: loader.set_epoch(0)) == (epoch(0), epoch(1))

    def test_but_not_when_set_epoch_names_just_it(self, method, tmp_path):
        dataset = Counted(tmp_path / "made")
        with make_loader(dataset, worker_method=method) as loader:
            list(loader)
            loader.set_epoch(1)
            list(loader)
            assert dataset.settled(2 * 16 + 12) == 2 * 16 + 12

    def test_when_the_sampler_is_told_another_as_lightning_does(self, method):
        assert self.jump(method, lambda loader: loader.sampler.set_epoch(5)) == (epoch(5), epoch(6))

    def test_when_the_collate_function_changed(self, method):
        ours = partial(default_collate)
        with make_loader(list(range(8)), worker_method=method, collate_fn=ours) as loader:
            assert batches(loader) == [["torch.int64", [2], [n, n + 1]] for n in range(0, 8, 2)]
            loader.collate_fn = partial(default_convert)
            assert list(loader) == [[n, n + 1] for n in range(0, 8, 2)]

    def test_when_the_dataset_grew(self, method):
        dataset = list(range(6))
        with make_loader(dataset, worker_method=method) as loader:
            assert len(list(loader)) == 3
            dataset.extend([6, 7])
            if method == "thread":  # worker processes have their own copy
                assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
            else:
                assert len(loader) == 4

    @pytest.mark.parametrize(("name", "value"), [("in_order", False), ("prefetch_factor", 1), ("timeout", 50.0)])
    def test_when_an_argument_changed(self, method, name, value, tmp_path):
        dataset = Counted(tmp_path / "made")
        with make_loader(dataset, worker_method=method) as loader:
            list(loader)
            assert dataset.settled(28) == 28
            setattr(loader, name, value)
            assert sorted(i for batch in loader for i in batch.tolist()) == list(range(16))
            # two epochs of 16, twelve samples that were dropped, and at least eight of the third epoch
            assert dataset.settled(52) >= 52

    def test_when_the_loop_is_broken_off_the_next_gets_its_own_epoch(self, method):
        with make_loader(Draws(), worker_method=method, shuffle=True) as loader:
            for number in range(6):
                iterator = iter(loader)
                actual = batches(taken(iterator, (12, 1, 8, 11, 7, 12)[number]))
                assert actual == epoch(number)[: len(actual)]
                del iterator
            assert batches(loader) == epoch(6)

    def test_when_the_loader_is_closed_or_collected(self, method):
        for _ in range(3):
            loader = make_loader(Draws(), worker_method=method)
            taken(iter(loader), 12)
            loader.close()
            taken(iter(loader), 12)
            del loader
        gc.collect()


class TestTheNextEpochIsNotBegun:
    @pytest.mark.parametrize(
        "arguments",
        [{"persistent_workers": False}, {"seed": None}, {"sampler": list(range(16))}],
        ids=["without persistent workers", "without a seed", "with a custom sampler"],
    )
    def test_for_loaders_that_do_not_prefetch(self, arguments, tmp_path):
        dataset = Counted(tmp_path / "made")
        with make_loader(dataset, **arguments) as loader:
            iterator = iter(loader)
            taken(iterator, 8)
            assert dataset.settled(16) == 16
            del iterator

    def test_next_epoch_is_not_begun_while_lightning_collects_indices(self, tmp_path):
        """Lightning's wrapper for predictions collects them, and would see the next epoch's."""

        class Watching:
            def __init__(self, batch_sampler):
                self._batch_sampler = batch_sampler
                self.seen_batch_indices = []
                self.batch_size = batch_sampler.batch_size
                self.drop_last = batch_sampler.drop_last
                self.sampler = batch_sampler.sampler

            def __iter__(self):
                return iter(self._batch_sampler)

            def __len__(self):
                return len(self._batch_sampler)

        dataset = Counted(tmp_path / "made")
        plain_sampler = make_loader(dataset, num_workers=0, persistent_workers=False).batch_sampler
        with make_loader(dataset, batch_size=1, batch_sampler=Watching(plain_sampler)) as loader:
            iterator = iter(loader)
            taken(iterator, 8)
            assert dataset.settled(16) == 16
            assert loader.batch_sampler.seen_batch_indices == [[n, n + 1] for n in range(0, 16, 2)]
            del iterator

    def test_for_a_loader_that_is_gone(self):
        loader = make_loader(Draws())
        iterator = iter(loader)
        next(iterator)
        del loader
        assert len(batches(iterator)) == 11

    def test_twice_by_two_iterators(self):
        with make_loader(Draws(), shuffle=True) as loader:
            first = iter(loader)
            second = iter(loader)
            actual = [batches([next(first)]), batches([next(second)])]
            actual[0] += batches(first)
            actual[1] += batches(second)
            assert actual == [epoch(0), epoch(1)]
            assert batches(loader) == epoch(2)
            del first, second


class FailingOrders(RandomSampler):
    """Has no order for one epoch."""

    def order(self, *, seed, epoch):
        if epoch == 1:
            raise ArithmeticError("no order")
        return super().order(seed=seed, epoch=epoch)


def test_an_error_of_the_next_epochs_order_is_raised_when_it_is_claimed():
    with make_loader(Draws(), sampler=FailingOrders(24)) as loader:
        assert batches(loader) == epoch(0)
        for _ in range(2):  # an epoch that could not be begun is not left out
            with pytest.raises(ArithmeticError, match="no order"):
                next(iter(loader))
        loader.set_epoch(2)
        assert batches(loader) == epoch(2)


def test_a_sample_that_fails_ahead_is_raised_in_its_turn():
    with make_loader(Draws(8, bad=[2])) as loader:
        for _ in range(3):
            iterator = iter(loader)
            assert next(iterator)["index"].tolist() == [0, 1]
            with pytest.raises(LookupError, match="sample 2"):
                next(iterator)
            assert [batch["index"].tolist() for batch in iterator] == [[4, 5], [6, 7]]


@METHODS
def test_epoch_dropped_before_an_iterator_holds_it_leaves_nothing(method):
    """As when Ctrl-C arrives in the first ``next()``."""
    with make_loader(Draws(), worker_method=method) as loader:
        list(loader)
        workers = loader._worker_manager.backend
        open_epochs = workers._results if method == "multiprocessing" else workers._state.results
        loader._start_epoch()
        gc.collect()
        assert len(open_epochs) == 0
        assert len(list(loader)) == 12


def test_an_iterator_that_is_kept_does_not_keep_the_epochs_after_it():
    with make_loader(Draws()) as loader:
        first = iter(loader)
        list(first)
        epochs = []
        for _ in range(5):
            epochs.append(weakref.ref(loader._worker_manager.next_epoch[-1]))
            list(loader)
        gc.collect()
        assert [scheduler() for scheduler in epochs] == [None] * 5
        del first


@METHODS
def test_two_hundred_epochs_leave_descriptors_threads_and_memory_flat(method):
    with make_loader(Draws(8), worker_method=method, sampler=SequentialSampler(8)) as loader:

        def belongings():
            gc.collect()
            process = psutil.Process()
            return len(os.listdir("/proc/self/fd")), threading.active_count(), process.memory_full_info().uss

        for _ in range(40):
            list(loader)
        initial = belongings()
        for _ in range(200):
            assert len(list(loader)) == 4
        final = belongings()
        assert final[:2] == initial[:2]
        assert final[2] < initial[2] + 2**21
