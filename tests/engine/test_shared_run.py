"""A pass that any worker serves, over a pool whose every step the test decides: order, bounds, errors, ends."""

from __future__ import annotations

import threading

import pytest

from lit_loader.engine import BatchKey, EndOfPass, Task
from tests.engine.fake_pool import FakePool, batch, numbers, plan, rest, shared


class TestSharedRun:
    def test_it_holds_as_many_batches_as_prefetch_says_and_one_in_each_hand(self):
        pool = FakePool(2)
        run = shared(pool, plan(20), prefetch_factor=3)
        assert numbers(pool) == list(range(8))
        assert run.next_batch() == batch(0)
        assert len(numbers(pool)) == 8

    def test_tasks_are_for_any_worker(self):
        pool = FakePool(3)
        shared(pool, plan(20))
        assert {worker for _, _, worker in pool.tasks} == {None}

    def test_in_order_whichever_is_done_first(self):
        pool = FakePool()
        run = shared(pool, plan(5))
        for at in (4, 2, 0, 1, 0):
            pool.do(at)
        assert rest(run) == [batch(n) for n in range(5)]

    def test_out_of_order_by_arrival(self):
        pool = FakePool()
        run = shared(pool, plan(5), in_order=False)
        for at in (4, 2, 0, 1, 0):
            pool.do(at)
        assert rest(run) == [batch(n) for n in (4, 2, 0, 3, 1)]

    def test_an_error_is_raised_in_its_batchs_turn_and_iteration_goes_on(self):
        for order in ((0, 0, 0), (2, 1, 0), (1, 0, 0)):
            pool = FakePool(3, bad={6: KeyError("of the second")})
            run = shared(pool, plan(3))
            for at in order:
                pool.do(at)
            assert run.next_batch() == batch(0)
            with pytest.raises(KeyError, match="of the second"):
                run.next_batch()
            assert rest(run) == [batch(2)]

    def test_a_result_that_comes_twice_counts_once(self):
        pool = FakePool(2)
        run = shared(pool, plan(2))
        pool.tasks.insert(0, pool.tasks[0])
        for _ in range(3):
            pool.do()
        assert rest(run) == [batch(0), batch(1)]

    @pytest.mark.parametrize("in_order", [False, True])
    def test_an_index_that_cannot_be_sent_is_raised_in_its_turn(self, in_order):
        tasks = list(plan(4))
        tasks[1] = Task([0, 1, 2, "unpicklable"], BatchKey(0, 0, 1, first=4))
        pool = FakePool()
        run = shared(pool, tasks, in_order=in_order)
        found = []
        while len(found) < 4:
            try:
                found.append(run.next_batch()[-1])
            except TypeError as error:
                found.append(str(error))
        assert sorted(map(str, found)) == ["11", "15", "3", "cannot pickle"]
        if in_order:
            assert found == [3, "cannot pickle", 11, 15]
        with pytest.raises(EndOfPass):
            run.next_batch()

    def test_an_error_of_the_plan_comes_after_the_batches_before_it(self):
        def failing():
            yield from plan(2)
            raise LookupError("no more")

        run = shared(FakePool(), failing())
        assert [run.next_batch() for _ in range(2)] == [batch(0), batch(1)]
        with pytest.raises(LookupError, match="no more"):
            run.next_batch()
        with pytest.raises(EndOfPass):
            run.next_batch()

    def test_a_dead_pool_raises_though_batches_lie_ready_and_again(self):
        pool = FakePool()
        run = shared(pool, plan(9))
        pool.do()
        pool.death = OSError("died")
        for _ in range(3):
            with pytest.raises(OSError, match="died"):
                run.next_batch()

    def test_a_pass_whose_batches_are_all_delivered_ends_though_its_pool_died(self):
        pool = FakePool()
        run = shared(pool, plan(1))
        run.next_batch()
        pool.death = OSError("died")
        with pytest.raises(EndOfPass):
            run.next_batch()

    def test_a_claim_on_closed_workers_raises(self):
        pool = FakePool()
        run = shared(pool, plan(3), claim=False)
        pool.close()
        with pytest.raises(RuntimeError, match="closed"):
            run.claim(None)

    def test_a_pass_is_counted_as_an_epoch_when_it_is_claimed_and_not_when_it_is_begun(self):
        pool = FakePool()
        run = shared(pool, plan(3), claim=False)
        assert pool.num_claims == 0
        assert run.claim(None)
        assert pool.num_claims == 1
        assert not run.claim(None)
        assert pool.num_claims == 1

    def test_an_empty_plan_ends_at_once(self):
        pool = FakePool()
        assert rest(shared(pool, [])) == []
        assert pool.ended == [0]

    def test_an_empty_batch_is_a_batch(self):
        assert rest(shared(FakePool(), [Task([], BatchKey(0, 0))])) == [()]

    def test_closing_wakes_a_consumer_that_waits_and_ends_its_pass(self):
        pool, waiting = FakePool(), threading.Event()

        def wait(run, timeout_s):
            waiting.set()
            run.signal.get(timeout=10)
            return True

        pool.wait = wait
        run, seen = shared(pool, plan(3)), []
        thread = threading.Thread(target=lambda: seen.append(rest(run)))
        thread.start()
        assert waiting.wait(10)
        run.close()
        thread.join(10)
        assert seen == [[]]

    def test_closing_takes_no_lock(self):
        """Finalizers run it in the middle of anything; another thread may hold the lock for long."""
        pool = FakePool()
        run = shared(pool, plan(3))
        held, release = threading.Event(), threading.Event()

        def hold():
            with pool.lock:
                held.set()
                release.wait(10)

        holder, closer = threading.Thread(target=hold), threading.Thread(target=run.close)
        holder.start()
        held.wait(10)
        closer.start()
        closer.join(5)
        done = not closer.is_alive()
        release.set()
        holder.join()
        closer.join()
        assert done
        assert pool.ended == [0]

    def test_results_of_a_closed_pass_are_dropped(self):
        pool = FakePool()
        run = shared(pool, plan(3))
        run.close()
        while pool.tasks:
            pool.do()
        assert rest(run) == []

    def test_a_fork_is_refused_without_the_lock(self):
        pool = FakePool()
        run = shared(pool, plan(3))
        pool.owned, pool.lock = False, None  # to take it would fail
        with pytest.raises(RuntimeError, match="closed"):
            run.next_batch()
        run.close()
        assert pool.ended == []
