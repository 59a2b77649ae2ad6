"""A worker's side of a slot: rows, what user code keeps there, what does not fit."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torch_default_collate

from lit_loader.transport import Place
from lit_loader.transport.layout import Layout
from lit_loader.transport.placing import find_leaves
from tests.transport.link import Link, collate_in, large, num_maps


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


class TestWhatAWorkerKeeps:
    @pytest.mark.parametrize("keep", ["samples", "batch", "view", "array"])
    def test_changes_with_no_later_batch_and_changes_none(self, link, keep):
        kept, received = [], []

        def collate(samples):
            batch = collate_in(link)(samples)
            kept.append(
                {"samples": samples, "batch": batch, "view": batch[0, 0, :3], "array": samples[0].numpy()}[
                    keep
                ]
            )
            return batch

        def value(thing):
            return float((thing[0] if keep in ("samples", "batch") else thing).mean())

        for number in range(6):
            received.append(link.collate([large(number), large(number + 0.5)], collate))
            assert [value(thing) for thing in kept] == list(range(number + 1))
            thing = kept[number][0] if keep == "samples" else kept[number]
            thing[:] = number + 100  # edits of what was kept, now and later
            for n, batch in enumerate(received):
                assert [float(row.mean()) for row in batch] == [n, n + 0.5]
            thing[:] = number
        received.clear()
        batch = link.collate([large(50)], collate_in(link))
        assert (batch == 50).all()

    def test_costs_its_own_mapping_only_while_it_is_kept(self, link):
        kept = []
        for number in range(8):
            link.collate([large(number)], lambda samples: kept.append(samples) or samples)
        assert num_maps() >= 8
        kept.clear()
        gc.collect()
        assert num_maps() <= 4

    def test_would_change_without_the_copy(self, link, monkeypatch):
        """The mechanism taken away."""
        monkeypatch.setattr("lit_loader.transport.mapping.Mapping.make_private", lambda *_: None)
        kept = []
        link.collate([large(1)], lambda samples: kept.append(samples[0]) or list(samples))
        link.collate([large(2)], list)
        assert (kept[0] == 2).all()


class TestRoom:
    def test_what_does_not_fit_into_a_window_comes_along(self, monkeypatch):
        monkeypatch.setattr("lit_loader.transport.slot_writer.WINDOW_BYTES", 64 * mmap.PAGESIZE)
        link = Link()
        for count in (3, 30, 5):
            batch = link.collate([large(n) for n in range(count)], list)
            assert [float(t.mean()) for t in batch] == list(range(count))
            stack = link.collate([large(n) for n in range(count)], collate_in(link))
            assert [float(t.mean()) for t in stack] == list(range(count))
        link.close()

    def test_a_worker_that_may_not_map_a_slot_sends_by_pipe(self, link, monkeypatch):
        def refuse(*_):
            raise OSError(12, "no memory")

        with monkeypatch.context() as patch:
            patch.setattr("lit_loader.transport.memory_file.MemoryFile.map", refuse)
            ticket = link.slots.ticket()
            frame = link.write(ticket, lambda place: collate_in(link)([place(large(3))]), 1)
        assert (link.read(ticket, frame) == 3).all()
        assert link.used_bytes == 0
        assert (link.collate([large(4)], collate_in(link)) == 4).all()

    def test_an_error_in_the_middle_of_a_batch_leaves_the_slot_for_the_next_one(self, link):
        def fail(samples):
            raise ArithmeticError("no")

        for number in range(3):
            with pytest.raises(ArithmeticError):
                link.collate([large(number)], fail)
            assert (link.collate([large(number + 5)], collate_in(link)) == number + 5).all()
        assert link.slots._num_slots <= 2

    def test_torchs_own_collation_of_moved_samples_is_right_too(self):
        link = Link(joins=False)
        for number in range(4):
            one, other = link.collate(
                [(large(number + n), np.full((64, 100), n)) for n in range(3)], torch_default_collate
            )
            assert [float(row.mean()) for row in one] == [number, number + 1, number + 2]
            assert [float(row.double().mean()) for row in other] == [0, 1, 2]
        link.close()


def test_a_row_is_given_out_once_and_scratch_memory_takes_nobody_elses(link):
    ticket = link.slots.ticket()
    link.writer.open(Place(ticket.number, num_rows=2), Layout(tuple(find_leaves(large(0)))))
    first, again = (link.writer.empty((64, 100), torch.float32) for _ in range(2))
    link.writer.row += 1
    second, other = (link.writer.empty(shape, torch.float32) for shape in ((64, 100), (100, 64)))
    for number, tensor in enumerate((first, again, second, other)):
        tensor.fill_(number)
    assert second.data_ptr() - first.data_ptr() == first.nbytes
    assert [float(t.mean()) for t in (first, again, second, other)] == [0, 1, 2, 3]
    del first, again, second, other, tensor
    link.writer.close()


def test_rows_that_nothing_was_written_to_leave_no_hole(link):
    """The first sample is laid out otherwise than those of the batch before."""
    layout = Layout(tuple(find_leaves(large(0, 1 << 18))))
    ticket = link.slots.ticket()
    link.writer.open(Place(ticket.number, num_rows=8), layout)
    tensor = link.writer.empty((64, 100), torch.float32)
    assert tensor.data_ptr() == link.writer._mapping.address
    del tensor
    link.writer.close()


def test_rows_that_something_was_written_to_stay_for_the_samples_that_fit(link):
    layout = Layout(tuple(find_leaves(large(0))))
    ticket = link.slots.ticket()
    link.writer.open(Place(ticket.number, num_rows=3), layout)
    first = link.writer.empty((64, 100), torch.float32)
    link.writer.row += 1
    other = link.writer.empty((100, 64), torch.float32)
    link.writer.row += 1
    third = link.writer.empty((64, 100), torch.float32)
    assert third.data_ptr() - first.data_ptr() == 2 * first.nbytes
    assert other.data_ptr() - first.data_ptr() == 3 * first.nbytes
    del first, other, third
    link.writer.close()
