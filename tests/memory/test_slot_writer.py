"""A worker's side of a slot: rows, what user code keeps there, what does not fit."""

from __future__ import annotations

import gc
import mmap
import os
import struct

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torch_default_collate

from lit_loader.memory import encode
from lit_loader.memory.mapping import ALIGNMENT
from tests.support.memory_link import Link, collate_in, large, made_in, num_maps


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


class TestWhatAWorkerKeeps:
    @pytest.mark.parametrize("keep", ["samples", "batch", "view", "array"])
    def test_changes_with_no_later_batch_and_changes_none(self, link, keep):
        kept = []
        received = []

        def collate(samples):
            batch = collate_in(link)(samples)
            kept.append(
                {"samples": samples, "batch": batch, "view": batch[0, 0, :3], "array": samples[0].numpy()}[keep]
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
        inode = os.fstat(link.file._fd).st_ino  # another test's error may still keep a batch of its own
        for number in range(8):
            link.collate([large(number)], lambda samples: kept.append(samples) or samples)
        assert num_maps(inode) >= 8
        kept.clear()
        gc.collect()
        assert num_maps(inode) <= 4

    def test_would_change_without_the_copy(self, link, monkeypatch):
        """The mechanism taken away."""
        monkeypatch.setattr("lit_loader.memory.mapping.Mapping.make_private", lambda *_: None)
        kept = []
        link.collate([large(1)], lambda samples: kept.append(samples[0]) or list(samples))
        link.collate([large(2)], list)
        assert (kept[0] == 2).all()


class TestRoom:
    def test_buffers_beyond_the_window_are_sent_through_the_pipe(self, monkeypatch):
        monkeypatch.setattr("lit_loader.memory.slot_writer.WINDOW_BYTES", 64 * mmap.PAGESIZE)
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
            patch.setattr("lit_loader.memory.mapping._map", refuse)
            ticket = link.slots.ticket()
            frame = link.write(ticket, lambda writer: collate_in(link)([made_in(writer, large(3))]))
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

    def test_torchs_own_collation_of_samples_in_the_slot_is_right_too(self):
        link = Link(stacks_rows=False)
        for number in range(4):
            one, other = link.collate(
                [(large(number + n), np.full((64, 100), n)) for n in range(3)], torch_default_collate
            )
            assert [float(row.mean()) for row in one] == [number, number + 1, number + 2]
            assert [float(row.double().mean()) for row in other] == [0, 1, 2]
        link.close()


def test_samples_of_one_shape_made_one_after_the_other_are_their_stack(link):
    """Whatever their size: each sample is written once."""
    for count in (64 * 100, 5003):
        ticket = link.slots.ticket()
        link.writer.open(ticket.number)
        samples = [made_in(link.writer, torch.full((count,), n, dtype=torch.float32)) for n in range(5)]
        batch = collate_in(link)(samples)
        assert batch.data_ptr() == samples[0].data_ptr()
        assert batch[:, 0].tolist() == batch[:, -1].tolist() == list(range(5))
        frame = encode(batch, link.writer.name)
        del samples, batch
        link.writer.close()
        assert [*struct.iter_unpack("<qQ", frame[1])] == [(0, 5 * 4 * count)]
        del ticket


def test_tensors_of_different_sizes_are_aligned_and_apart(link):
    sample = (large(1), torch.full((20_001,), 2, dtype=torch.uint8), large(3, 5, 30, 41).to(torch.complex64))
    for _ in range(3):
        batch = link.collate([tuple(t + n for t in sample) for n in range(9)], collate_in(link))
        assert all(stack.data_ptr() % ALIGNMENT == 0 for stack in batch)
        for value, stack in enumerate(batch, start=1):
            assert [complex(row.flatten()[0]) for row in stack] == [value + n for n in range(9)]
            assert all((row == row.flatten()[0]).all() for row in stack)


def test_two_stacks_of_samples_that_hold_one_tensor_twice_are_apart(link):
    def collate(samples):
        return collate_in(link)([(sample, sample) for sample in samples])

    for _ in range(3):
        one, other = link.collate([large(1), large(2)], collate)
        one += 5
        assert [float(row.mean()) for row in other] == [1, 2]


def test_samples_and_their_stack_do_not_share_memory_where_both_are_sent():
    link = Link(stacks_rows=False)
    for _ in range(3):
        samples, stack = link.collate([large(1), large(2)], lambda samples: (list(samples), collate_in(link)(samples)))
        stack += 5
        assert [float(sample.mean()) for sample in samples] == [1, 2]
        samples[0] += 9
        assert [float(row.mean()) for row in stack] == [6, 7]
    link.close()


@pytest.mark.parametrize("sizes", [(1, 1, 4), (4, 1, 1), (3, 5, 2), (1, 9, 1)])
def test_batches_of_different_lengths_and_shapes_follow_each_other(link, sizes):
    shapes = [(64, 100), (64, 100), (3, 80, 80), (64, 100)]
    for count in sizes:
        for shape in shapes:
            batch = link.collate([[large(n, *shape), n] for n in range(count)], collate_in(link))
            assert [float(row.mean()) for row in batch[0]] == list(range(count))


def test_ragged_samples_arrive_as_they_are(link):
    for number in range(4):
        samples = [large(n, 50 + (n + number) % 3, 100) for n in range(6)]
        batch = link.collate(samples, list)
        assert all(torch.equal(one, other) for one, other in zip(batch, samples, strict=True))


def test_samples_that_a_collate_function_stacks_by_itself_are_right(link):
    for number in range(5):
        batch = link.collate([large(number), large(number + 1)], torch.stack)
        assert [float(row.mean()) for row in batch] == [number, number + 1]
