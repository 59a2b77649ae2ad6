"""A scheduler over a backend that the test controls: order, bounds, errors, ends."""

from __future__ import annotations

import threading

import pytest

from lit_loader.engine import BatchKey, BatchTimeoutError, EndOfEpoch, Task
from lit_loader.engine.spec import Kind
from tests.support.fake_backend import FakeBackend, batch, numbers, plan, rest, schedule


class TestForAnyWorker:
    def test_tasks_in_flight_reach_the_limit(self):
        backend = FakeBackend(2)
        scheduler = schedule(backend, plan(20), ahead=8)
        assert numbers(backend) == list(range(8))
        assert scheduler.next_batch() == batch(0)
        assert len(numbers(backend)) == 8

    def test_finished_batches_count_as_in_flight(self):
        backend = FakeBackend(2)
        scheduler = schedule(backend, plan(20), ahead=8)
        for _ in range(8):
            backend.do()
        assert scheduler.poll()
        assert backend.tasks == []
        assert scheduler.next_batch() == batch(0)
        assert numbers(backend) == [8]

    def test_tasks_name_no_worker(self):
        backend = FakeBackend(3)
        schedule(backend, plan(20))
        assert {submitted.worker for submitted in backend.tasks} == {None}

    @pytest.mark.parametrize(("in_order", "order"), [(True, range(5)), (False, (4, 2, 0, 3, 1))])
    def test_batches_arrive_in_order_or_as_they_are_finished(self, in_order, order):
        backend = FakeBackend()
        scheduler = schedule(backend, plan(5), in_order=in_order)
        for at in (4, 2, 0, 1, 0):
            backend.do(at)
        assert rest(scheduler) == [batch(n) for n in order]

    @pytest.mark.parametrize(("in_order", "expected"), [(True, [0, 1, 2]), (False, [None] * 3)])
    def test_consumer_in_order_waits_for_the_next_batch_and_out_of_order_for_any(self, in_order, expected):
        backend = FakeBackend()
        awaited = []
        scheduler = schedule(backend, plan(3), in_order=in_order)
        poll = backend.poll

        def recorded_poll(epoch, timeout_s, number):
            awaited.append(number)
            return poll(epoch, timeout_s, number)

        backend.poll = recorded_poll
        assert len(rest(scheduler)) == 3
        assert awaited == expected

    def test_poll_is_true_when_the_next_batch_is_finished(self):
        backend = FakeBackend()
        scheduler = schedule(backend, plan(2))
        assert not scheduler.poll()
        backend.do(1)
        assert not scheduler.poll()
        backend.do(0)
        assert scheduler.poll()
        assert rest(scheduler) == [batch(0), batch(1)]
        assert scheduler.poll()

    @pytest.mark.parametrize("order", [(0, 0, 0), (2, 1, 0), (1, 0, 0)])
    def test_error_is_raised_in_place_of_its_batch_and_iteration_continues(self, order):
        backend = FakeBackend(3, bad={6: KeyError("of the second")})
        scheduler = schedule(backend, plan(3))
        for at in order:
            backend.do(at)
        assert scheduler.next_batch() == batch(0)
        with pytest.raises(KeyError, match="of the second"):
            scheduler.next_batch()
        assert rest(scheduler) == [batch(2)]

    def test_duplicate_result_counts_once(self):
        backend = FakeBackend(2)
        scheduler = schedule(backend, plan(2))
        backend.tasks.insert(0, backend.tasks[0])
        for _ in range(3):
            backend.do()
        assert rest(scheduler) == [batch(0), batch(1)]

    @pytest.mark.parametrize("in_order", [False, True])
    def test_unsendable_index_is_raised_in_its_turn(self, in_order):
        tasks = list(plan(4))
        tasks[1] = Task([0, 1, 2, "unpicklable"], BatchKey(0, 0, 1, first=4))
        scheduler = schedule(FakeBackend(), tasks, in_order=in_order)
        outcomes = []
        while len(outcomes) < 4:
            try:
                outcomes.append(scheduler.next_batch()[-1])
            except TypeError as error:
                outcomes.append(str(error))
        assert sorted(map(str, outcomes)) == ["11", "15", "3", "cannot pickle"]
        if in_order:
            assert outcomes == [3, "cannot pickle", 11, 15]
        with pytest.raises(EndOfEpoch):
            scheduler.next_batch()

    def test_error_of_the_plan_comes_after_earlier_batches(self):
        def failing():
            yield from plan(2)
            raise LookupError("no more")

        scheduler = schedule(FakeBackend(), failing())
        assert [scheduler.next_batch() for _ in range(2)] == [batch(0), batch(1)]
        with pytest.raises(LookupError, match="no more"):
            scheduler.next_batch()
        with pytest.raises(EndOfEpoch):
            scheduler.next_batch()

    def test_dead_workers_raise_again_and_again_even_with_finished_batches(self):
        backend = FakeBackend()
        scheduler = schedule(backend, plan(9))
        backend.do()
        backend.death = OSError("died")
        for _ in range(3):
            with pytest.raises(OSError, match="died"):
                scheduler.next_batch()

    def test_epoch_ends_normally_if_workers_die_after_the_last_batch(self):
        backend = FakeBackend()
        scheduler = schedule(backend, plan(1))
        scheduler.next_batch()
        backend.death = OSError("died")
        with pytest.raises(EndOfEpoch):
            scheduler.next_batch()

    def test_claim_on_closed_workers_raises(self):
        backend = FakeBackend()
        scheduler = schedule(backend, plan(3), claim=False)
        backend.close()
        with pytest.raises(RuntimeError, match="closed"):
            scheduler.claim()

    def test_scheduler_can_be_claimed_only_once(self):
        scheduler = schedule(FakeBackend(), plan(3), claim=False)
        assert scheduler.claim()
        assert not scheduler.claim()

    def test_empty_plan_ends_at_once(self):
        backend = FakeBackend()
        assert rest(schedule(backend, [])) == []
        assert backend.ended == [0]

    def test_empty_batch_is_delivered(self):
        assert rest(schedule(FakeBackend(), [Task([], BatchKey(0, 0))])) == [()]

    def test_owned_backend_is_closed_at_the_end(self):
        backend = FakeBackend()
        assert len(rest(schedule(backend, plan(3), owns_backend=True))) == 3
        assert backend.closed

    def test_iterable_dataset_is_iterated_at_once_on_request(self):
        backend = FakeBackend()
        schedule(backend, plan(1))
        schedule(backend, plan(1), iterate=True)
        assert backend.iterated == [1]

    def test_batch_may_arrive_after_a_timeout(self):
        backend = FakeBackend()
        scheduler = schedule(backend, plan(1), timeout_s=0.01)
        do = backend.do
        backend.do = lambda: None
        with pytest.raises(BatchTimeoutError, match=r"timed out after 0.01 seconds"):
            scheduler.next_batch()
        backend.do = do
        assert rest(scheduler) == [batch(0)]

    def test_timeout_counts_from_the_last_result(self, monkeypatch):
        """Batches that come out of order, each in time, keep an epoch alive whose next batch takes long."""
        now = [0.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        backend = FakeBackend()
        scheduler = schedule(backend, plan(4), timeout_s=10)
        do = backend.do
        times = iter([9, 9, 9, 9])

        def slowly():
            now[0] += next(times)
            do(-1)

        backend.do = slowly
        assert scheduler.next_batch() == batch(0)


class TestClosing:
    def test_close_wakes_a_waiting_consumer_and_ends_its_epoch(self):
        backend = FakeBackend()
        waiting = threading.Event()
        closed = threading.Event()

        def poll(epoch, timeout_s, number):
            waiting.set()
            assert closed.wait(10)
            return []

        backend.poll = poll
        backend.close_epoch = lambda epoch: closed.set()
        scheduler = schedule(backend, plan(3))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(rest(scheduler)))
        thread.start()
        assert waiting.wait(10)
        scheduler.close()
        thread.join(10)
        assert seen == [[]]

    def test_close_takes_no_lock(self):
        """Finalizers run it in the middle of anything; another thread may hold the lock for long."""
        backend = FakeBackend()
        scheduler = schedule(backend, plan(3))
        locked = threading.Event()
        release = threading.Event()

        def hold():
            with scheduler._lock:
                locked.set()
                release.wait(10)

        holder = threading.Thread(target=hold)
        closer = threading.Thread(target=scheduler.close)
        holder.start()
        locked.wait(10)
        closer.start()
        closer.join(5)
        closed = not closer.is_alive()
        release.set()
        holder.join()
        closer.join()
        assert closed
        assert backend.ended == [0]

    def test_results_after_close_are_dropped(self):
        backend = FakeBackend()
        scheduler = schedule(backend, plan(3))
        scheduler.close()
        while backend.tasks:
            backend.do()
        assert rest(scheduler) == []

    @pytest.mark.parametrize("kind", [Kind.RESULT, Kind.STREAM_ENDED])
    def test_close_during_the_receipt_of_a_result_raises_nothing(self, kind):
        """The finalizer of an iterator, in another thread or in the middle of this one's step."""
        backend = FakeBackend()
        scheduler = schedule(backend, plan(3), dealing="turns")

        class Closing(dict):
            def __contains__(self, number):
                is_member = super().__contains__(number)
                scheduler.close()
                return is_member

            def pop(self, *arguments):
                item = super().pop(*arguments)
                scheduler.close()
                return item

        poll = backend.poll

        def poll_and_close(epoch, timeout_s, number):
            backend.do(kind=kind)
            scheduler._in_flight = Closing(scheduler._in_flight)
            return poll(epoch, timeout_s, number)

        backend.poll = poll_and_close
        assert rest(scheduler) in ([], [batch(0)])  # as if it had been closed before, or after
        assert backend.ended

    def test_close_during_planning_leaves_nothing_to_wait_for(self):
        backend = FakeBackend()

        def closing():
            yield from plan(1)
            scheduler.close()
            yield from plan(1)

        scheduler = schedule(backend, closing(), ahead=1)
        assert scheduler.next_batch() == batch(0)
        assert scheduler.poll()
        assert rest(scheduler) == []

    def test_fork_is_refused_without_taking_the_lock(self):
        backend = FakeBackend()
        scheduler = schedule(backend, plan(3))
        backend.is_own_process = False
        scheduler._lock = None  # taking it would fail
        with pytest.raises(RuntimeError, match="of another process"):
            scheduler.next_batch()
        assert scheduler.poll()
        scheduler.close()


class TestForOneWorkerEach:
    def test_in_turns_batch_number_decides_the_worker(self):
        backend = FakeBackend(3)
        scheduler = schedule(backend, plan(12), dealing="turns")
        assert [submitted.worker for submitted in backend.tasks] == [0, 1, 2] * 3
        backend.do(8)
        backend.do(4)
        assert len(rest(scheduler)) == 12

    def test_turns_may_start_at_any_worker(self):
        backend = FakeBackend(3)
        schedule(backend, plan(4), dealing="turns", turn=2)
        assert [submitted.worker for submitted in backend.tasks] == [2, 0, 1, 2]

    def test_least_busy_worker_takes_the_next_task(self):
        backend = FakeBackend(3)
        scheduler = schedule(backend, plan(12), ahead=6, dealing="least_busy", in_order=False)
        assert [submitted.worker for submitted in backend.tasks] == [0, 1, 2] * 2
        backend.do(1)
        assert scheduler.next_batch() == batch(1)
        assert backend.tasks[-1].worker == 1

    def test_worker_at_the_end_of_its_stream_leaves_its_tasks_to_others(self):
        backend = FakeBackend(2)
        scheduler = schedule(backend, plan(8), ahead=4, dealing="turns")
        backend.do(0, kind=Kind.STREAM_ENDED)
        assert rest(scheduler) == [batch(n) for n in (1, 3, 4, 5, 6, 7)]
        assert scheduler.stream_ends() == ["end of 0"]

    def test_epoch_ends_when_all_streams_have_ended(self):
        backend = FakeBackend(2)

        def endless():
            while True:
                yield Task([0])

        scheduler = schedule(backend, endless(), dealing="turns")
        for _ in backend.tasks[:]:
            backend.do(-1, kind=Kind.STREAM_ENDED)
        assert rest(scheduler) == []
        assert sorted(scheduler.stream_ends()) == ["end of 0", "end of 1"]


class TestInTheMiddleOfABatch:
    """Ctrl-C, or a signal handler that asks for a batch."""

    def test_ctrl_c_in_the_sampler_does_not_lose_the_next_batch(self):
        interrupts = [KeyboardInterrupt()]

        def tasks():
            for number, task in enumerate(plan(6)):
                if number == 3 and interrupts:
                    raise interrupts.pop()
                yield task

        backend = FakeBackend()
        scheduler = schedule(backend, tasks(), ahead=3)
        with pytest.raises(KeyboardInterrupt):
            scheduler.next_batch()
        assert scheduler.next_batch() == batch(0)
        assert scheduler.next_batch() == batch(1)

    def test_ctrl_c_before_a_task_is_sent_is_an_error_in_its_place(self):
        class Interrupted(list):
            def __len__(self):
                raise KeyboardInterrupt

        backend = FakeBackend(1)
        scheduler = schedule(backend, plan(6), ahead=2, dealing="turns")
        busy = scheduler._busy
        scheduler._busy = Interrupted(busy)
        scheduler._choose_worker = lambda: 0
        with pytest.raises(KeyboardInterrupt):
            scheduler.next_batch()
        del scheduler._choose_worker
        scheduler._busy = busy
        assert [scheduler.next_batch(), scheduler.next_batch()] == [batch(0), batch(1)]
        with pytest.raises(RuntimeError, match="interrupted"):
            scheduler.next_batch()

    def test_signal_handler_that_takes_a_batch_during_receipt_loses_no_result(self):
        backend = FakeBackend()
        batches = []
        scheduler = schedule(backend, plan(6), ahead=3)
        for at in (1, 0, 0):  # the first one received is not the one that the handler gets
            backend.do(at)
        receive = scheduler._receive

        def interrupted(result):
            receive(result)
            scheduler._receive = receive  # the handler is not interrupted itself
            batches.append(scheduler.next_batch())

        scheduler._receive = interrupted
        batches.append(scheduler.next_batch())
        assert batches + rest(scheduler) == [batch(n) for n in range(6)]
