"""A pass that any worker serves, over a pool whose every step the test decides: order, bounds, errors, pieces."""

from __future__ import annotations

import threading

import pytest

from lit_loader.engine import BatchKey, EndOfPass, Task
from lit_loader.engine.messages import Kind
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

    def test_pieces_make_a_batch_in_the_order_of_its_samples(self):
        pool = FakePool(2)
        run = shared(pool, plan(2, 5), share=True)
        assert [(header.number, header.piece) for header, _, _ in pool.tasks] == [
            (0, 0),
            (0, 1),
            (1, 0),
            (1, 1),
        ]
        assert [task.key.first for _, task, _ in pool.tasks] == [0, 3, 5, 8]
        for at in (3, 1, 1, 0):
            pool.do(at)
        assert rest(run) == [("joined by the consumer", *batch(n, 5)) for n in range(2)]

    def test_the_last_worker_joins_the_pieces_where_workers_do(self):
        pool = FakePool(2, joins=True)
        run = shared(pool, plan(1), share=True)
        assert rest(run) == [("joined by a worker", *batch(0))]

    @pytest.mark.parametrize("joins", [False, True])
    def test_of_several_errors_in_a_batch_the_first_by_position_is_raised_and_iteration_goes_on(self, joins):
        bad = {1: KeyError("first"), 6: KeyError("second")}
        for order in ((0, 0, 0), (2, 1, 0), (1, 0, 0)):
            pool = FakePool(3, joins=joins, bad=bad)
            run = shared(pool, plan(2, 9), share=True)
            for at in order:
                pool.do(at)
            with pytest.raises(KeyError, match="first"):
                run.next_batch()
            assert run.next_batch()[1:] == batch(1, 9)

    def test_a_result_that_comes_twice_counts_once(self):
        pool = FakePool(2)
        run = shared(pool, plan(1), share=True)
        pool.tasks.insert(0, pool.tasks[0])
        for _ in range(3):
            pool.do()
        assert rest(run) == [("joined by the consumer", *batch(0))]

    @pytest.mark.parametrize("share", [False, True])
    @pytest.mark.parametrize("in_order", [False, True])
    def test_an_index_that_cannot_be_sent_is_raised_in_its_turn(self, share, in_order):
        tasks = list(plan(4))
        tasks[1] = Task([0, 1, 2, "unpicklable"], BatchKey(0, 0, 1, first=4))
        pool = FakePool()
        run = shared(pool, tasks, share=share, in_order=in_order)
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

    def test_an_empty_plan_ends_at_once(self):
        pool = FakePool()
        assert rest(shared(pool, [])) == []
        assert pool.ended == [0]

    def test_an_empty_batch_is_a_batch(self):
        assert rest(shared(FakePool(), [Task([], BatchKey(0, 0))], share=True)) == [()]

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
        pool = FakePool(joins=True)
        run = shared(pool, plan(3), share=True)
        run.close()
        while pool.tasks:
            pool.do()
        run.joined(0, Kind.RESULT, "late")
        assert rest(run) == []

    def test_a_fork_is_refused_without_the_lock(self):
        pool = FakePool()
        run = shared(pool, plan(3))
        pool.owned, pool.lock = False, None  # to take it would fail
        with pytest.raises(RuntimeError, match="closed"):
            run.next_batch()
        run.close()
        assert pool.ended == []

    @pytest.mark.parametrize(
        ("keeps_up", "joins", "cut"), [(False, False, True), (True, False, False), (True, True, True)]
    )
    def test_a_consumer_that_need_not_wait_gets_no_pieces_to_collate(self, keeps_up, joins, cut):
        pool = FakePool(joins=joins)
        pool.pace.note(1, 0.1)
        for _ in range(9 if keeps_up else 0):
            pool.pace.note_delivery()
        shared(pool, plan(1), share=None)
        assert (len(pool.tasks) > 1) is cut
