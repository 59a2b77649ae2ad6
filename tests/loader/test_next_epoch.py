"""The next epoch is begun before this one ends, kept for the iterator that claims it, or dropped if it does not fit."""

from __future__ import annotations

import gc
import os
import threading
from functools import partial

import psutil
import pytest

from lit_loader import DataLoader, RandomSampler, SequentialSampler
from lit_loader.collate.default import default_collate, default_convert
from tests.support.scheduled_set import Counted, Draws
from tests.support.toys import plain

METHODS = pytest.mark.parametrize("method", ["multiprocessing", "thread"])


def loader(dataset, **arguments):
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
        with loader(dataset, worker_method=method) as it:
            iterator = iter(it)
            taken(iterator, 8)  # all of it; the end is not asked for yet
            assert dataset.settled(28) == 28  # 16 of this epoch, six batches of the next

    def test_and_no_more_is_held_than_prefetch_allows_at_any_time(self, method, tmp_path):
        dataset = Counted(tmp_path / "made", 10)
        delivered = 0
        with loader(dataset, worker_method=method, batch_size=1) as it:
            for _ in range(4):
                for _ in it:
                    delivered += 1
                    assert dataset.made - delivered <= 6
            assert dataset.settled(delivered + 6) == delivered + 6

    def test_and_used_bit_for_bit_without_being_made_again(self, method, tmp_path):
        with loader(Draws(), worker_method=method, shuffle=True) as it:
            for number in range(4):
                assert batches(it) == epoch(number)
        dataset = Counted(tmp_path / "made")
        with loader(dataset, worker_method=method) as it:
            for _ in range(3):
                list(it)
            assert dataset.settled(3 * 16 + 12) == 3 * 16 + 12

    def test_out_of_order_too(self, method):
        with loader(Draws(), worker_method=method, shuffle=True, in_order=False) as it:
            for number in range(4):
                assert sorted(map(str, batches(it))) == sorted(map(str, epoch(number)))

    def test_epoch_shorter_than_the_prefetch_bound_is_complete(self, method):
        with loader(Draws(2), worker_method=method, shuffle=True) as it:
            for number in range(5):
                assert batches(it) == epoch(number, Draws(2))

    def test_epoch_without_batches_is_followed_by_the_next(self, method):
        with loader(Draws(1), worker_method=method, drop_last=True) as it:
            assert [len(list(it)) for _ in range(3)] == [0, 0, 0]

    def test_for_samples_that_are_not_batched(self, method, tmp_path):
        dataset = Counted(tmp_path / "made", 8)
        with loader(dataset, worker_method=method, batch_size=None) as it:
            for count in range(1, 4):
                assert list(it) == list(range(8))
                assert dataset.settled(8 * count + 6) == 8 * count + 6


@METHODS
class TestTheNextEpochIsDropped:
    def jump(self, method, name_epoch, **arguments):
        """Return the batches after the first epoch, if another epoch than the next was set."""
        with loader(Draws(), worker_method=method, shuffle=True, **arguments) as it:
            list(it)
            name_epoch(it)
            return batches(it), batches(it)

    def test_when_set_epoch_names_another(self, method):
        assert self.jump(method, lambda it: it.set_epoch(7)) == (epoch(7), epoch(8))
        assert self.jump(method, lambda it: it.set_epoch(0)) == (epoch(0), epoch(1))

    def test_but_not_when_set_epoch_names_just_it(self, method, tmp_path):
        dataset = Counted(tmp_path / "made")
        with loader(dataset, worker_method=method) as it:
            list(it)
            it.set_epoch(1)
            list(it)
            assert dataset.settled(2 * 16 + 12) == 2 * 16 + 12

    def test_when_the_sampler_is_told_another_as_lightning_does(self, method):
        assert self.jump(method, lambda it: it.sampler.set_epoch(5)) == (epoch(5), epoch(6))

    def test_when_the_collate_function_changed(self, method):
        ours = partial(default_collate)
        with loader(list(range(8)), worker_method=method, collate_fn=ours) as it:
            assert batches(it) == [["torch.int64", [2], [n, n + 1]] for n in range(0, 8, 2)]
            it.collate_fn = partial(default_convert)
            assert list(it) == [[n, n + 1] for n in range(0, 8, 2)]

    def test_when_the_dataset_grew(self, method):
        dataset = list(range(6))
        with loader(dataset, worker_method=method) as it:
            assert len(list(it)) == 3
            dataset.extend([6, 7])
            if method == "thread":  # worker processes have their own copy
                assert [batch.tolist() for batch in it] == [[0, 1], [2, 3], [4, 5], [6, 7]]
            else:
                assert len(it) == 4

    @pytest.mark.parametrize(("name", "value"), [("in_order", False), ("prefetch_factor", 1), ("timeout", 50.0)])
    def test_when_an_argument_changed(self, method, name, value, tmp_path):
        dataset = Counted(tmp_path / "made")
        with loader(dataset, worker_method=method) as it:
            list(it)
            ahead = it._worker_manager.next_epoch[-1]
            setattr(it, name, value)
            assert sorted(i for batch in it for i in batch.tolist()) == list(range(16))
            assert ahead._num_ahead == 0
            assert it._worker_manager.next_epoch[-1] is not ahead

    def test_when_the_loop_is_broken_off_the_next_gets_its_own_epoch(self, method):
        with loader(Draws(), worker_method=method, shuffle=True) as it:
            for number in range(6):
                iterator = iter(it)
                actual = batches(taken(iterator, (12, 1, 8, 11, 7, 12)[number]))
                assert actual == epoch(number)[: len(actual)]
                del iterator
            assert batches(it) == epoch(6)

    def test_when_the_loader_is_closed_or_collected(self, method):
        for _ in range(3):
            it = loader(Draws(), worker_method=method)
            taken(iter(it), 12)
            it.close()
            taken(iter(it), 12)
            del it
        gc.collect()


def begun(it):
    return it._worker_manager.next_epoch is not None


class TestTheNextEpochIsNotBegun:
    def test_without_persistent_workers(self, tmp_path):
        dataset = Counted(tmp_path / "made")
        iterator = iter(loader(dataset, persistent_workers=False))
        taken(iterator, 8)
        assert dataset.settled(16) == 16
        del iterator

    def test_without_a_seed(self, tmp_path):
        dataset = Counted(tmp_path / "made")
        with loader(dataset, seed=None) as it:
            iterator = iter(it)
            taken(iterator, 8)
            assert dataset.settled(16) == 16
            del iterator

    def test_with_a_custom_sampler(self, tmp_path):
        dataset = Counted(tmp_path / "made")
        with loader(dataset, sampler=list(range(len(dataset)))) as it:
            iterator = iter(it)
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
        plain_sampler = loader(dataset, num_workers=0, persistent_workers=False).batch_sampler
        with loader(dataset, batch_size=1, batch_sampler=Watching(plain_sampler)) as it:
            iterator = iter(it)
            taken(iterator, 8)
            assert dataset.settled(16) == 16
            assert it.batch_sampler.seen_batch_indices == [[n, n + 1] for n in range(0, 16, 2)]
            del iterator

    def test_for_a_loader_that_is_gone(self):
        it = loader(Draws())
        iterator = iter(it)
        next(iterator)
        del it
        assert len(batches(iterator)) == 11

    def test_twice_by_two_iterators(self, tmp_path):
        with loader(Draws(), shuffle=True) as it:
            first = iter(it)
            second = iter(it)
            actual = [batches([next(first)]), batches([next(second)])]
            actual[0] += batches(first)
            assert not begun(it)  # epoch 1 is the second one's
            actual[1] += batches(second)
            assert begun(it)
            assert actual == [epoch(0), epoch(1)]
            assert batches(it) == epoch(2)
            del first, second


class FailingOrders(RandomSampler):
    """Has no order for one epoch."""

    def order(self, *, seed, epoch):
        if epoch == 1:
            raise ArithmeticError("no order")
        return super().order(seed=seed, epoch=epoch)


def test_an_error_of_the_next_epochs_order_is_raised_when_it_is_claimed():
    with loader(Draws(), sampler=FailingOrders(24)) as it:
        assert batches(it) == epoch(0)
        for _ in range(2):  # an epoch that could not be begun is not left out
            with pytest.raises(ArithmeticError, match="no order"):
                next(iter(it))
        it.set_epoch(2)
        assert batches(it) == epoch(2)


def test_a_sample_that_fails_ahead_is_raised_in_its_turn():
    with loader(Draws(8, bad=[2])) as it:
        for _ in range(3):
            iterator = iter(it)
            assert next(iterator)["index"].tolist() == [0, 1]
            with pytest.raises(LookupError, match="sample 2"):
                next(iterator)
            assert [batch["index"].tolist() for batch in iterator] == [[4, 5], [6, 7]]


@METHODS
def test_an_epoch_that_is_dropped_before_an_iterator_has_it_leaves_nothing_with_kept_workers(method):
    """As when Ctrl-C comes in the first ``next()``."""
    with loader(Draws(), worker_method=method) as it:
        list(it)
        workers = it._worker_manager.backend
        epochs = workers._results if method == "multiprocessing" else workers._state.results
        it._start_epoch()
        gc.collect()
        assert len(epochs) == 0
        assert len(list(it)) == 12


def test_an_iterator_that_is_kept_does_not_keep_the_epochs_after_it():
    import weakref

    with loader(Draws()) as it:
        first = iter(it)
        list(first)
        epochs = []
        for _ in range(5):
            epochs.append(weakref.ref(it._worker_manager.next_epoch[-1]))
            list(it)
        gc.collect()
        assert [scheduler() for scheduler in epochs] == [None] * 5
        del first


@METHODS
def test_two_hundred_epochs_leave_descriptors_threads_and_memory_flat(method):
    with loader(Draws(8), worker_method=method, sampler=SequentialSampler(8)) as it:

        def belongings():
            gc.collect()
            process = psutil.Process()
            return len(os.listdir("/proc/self/fd")), threading.active_count(), process.memory_full_info().uss

        for _ in range(40):
            list(it)
        before = belongings()
        for _ in range(200):
            assert len(list(it)) == 4
        after = belongings()
        assert after[:2] == before[:2]
        assert after[2] < before[2] + 2**21
