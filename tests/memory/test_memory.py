"""Memory of slots: mapped, given back, made private; the file that it lies in; byte ranges."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.memory import MemoryFile, mapping
from lit_loader.memory.mapping import ALIGNMENT, CHUNK_BYTES, MAX_SLOTS, WINDOW_BYTES, Mapping, merge_ranges
from lit_loader.memory.slot_writer import add_range
from tests.support.memory_link import num_maps, refuse_to_populate

PAGE = mmap.PAGESIZE


@pytest.fixture
def file():
    file = MemoryFile()
    yield file
    file.close()


def bytes_at(mapping, start, length):
    return (ctypes.c_char * length).from_address(mapping.address + start)


def test_two_mappings_of_a_slot_are_the_same_memory_and_two_slots_are_not(file):
    one = Mapping(file, 3)
    other = Mapping(file, 3)
    third = Mapping(file, MAX_SLOTS - 1)
    bytes_at(one, 5000, 4).value = b"abc"
    assert bytes_at(other, 5000, 4).value == b"abc"
    assert bytes_at(third, 5000, 4).value == b""


def test_memory_is_taken_by_what_is_written_and_freed_by_giving_it_back(file):
    one = Mapping(file, 0)
    other = Mapping(file, 0)
    ctypes.memset(one.address, 1, 40 * CHUNK_BYTES)
    assert os.fstat(file._fd).st_blocks * 512 == 40 * CHUNK_BYTES
    bytes_at(other, 0, 2).value = b"x"
    other.free_pages()
    assert os.fstat(file._fd).st_blocks == 0
    assert bytes_at(one, 0, 2).value == b""


def test_memory_that_was_touched_is_touched_again_only_after_it_was_given_back(file, monkeypatch):
    calls = []
    libc = mapping._libc

    class Counted:
        def __getattr__(self, name):
            return getattr(libc, name)

        def madvise(self, address, size, advice):
            calls.append((address - one.address, size, advice))
            return libc.madvise(address, size, advice)

    one = Mapping(file, 0)
    monkeypatch.setattr(mapping, "_libc", Counted())
    one.touch(10, CHUNK_BYTES)
    one.touch(0, 2 * CHUNK_BYTES)
    one.touch(CHUNK_BYTES, CHUNK_BYTES + 1)
    populate = mapping._MADV_POPULATE_WRITE
    assert calls == [(0, 2 * CHUNK_BYTES, populate), (2 * CHUNK_BYTES, CHUNK_BYTES, populate)]
    one.free_pages()
    one.touch(0, 1)
    assert calls[-1] == (0, CHUNK_BYTES, populate)


def test_ranges_made_private_keep_address_and_contents_and_are_shared_no_more(file):
    one = Mapping(file, 0)
    other = Mapping(file, 0)
    for start in (0, 3 * PAGE, 9 * PAGE):
        bytes_at(one, start, 10).value = b"before"
    one.make_private([(3 * PAGE + 1, 3 * PAGE + 5), (0, 10), (4, 20)])
    for start in (0, 3 * PAGE, 9 * PAGE):
        assert bytes_at(one, start, 10).value == b"before"
        bytes_at(other, start, 10).value = b"after"
    assert bytes_at(one, 0, 10).value == bytes_at(one, 3 * PAGE, 10).value == b"before"
    assert bytes_at(one, 9 * PAGE, 10).value == b"after"
    bytes_at(one, 0, 10).value = b"mine"
    assert bytes_at(other, 0, 10).value == b"after"


def test_empty_ranges_map_nothing(file):
    one = Mapping(file, 0)
    before = num_maps()
    one.make_private([(0, 0), (7, 7), (PAGE, PAGE)])
    assert num_maps() == before


def test_a_mapping_goes_with_its_object_private_ranges_too(file):
    before = num_maps()
    one = Mapping(file, 0)
    one.make_private([(PAGE, 2 * PAGE), (5 * PAGE, 6 * PAGE)])
    assert num_maps() > before
    address = one.address
    del one
    assert num_maps() == before
    with open("/proc/self/maps") as lines:
        starts = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in lines]
    assert not any(start <= address + PAGE < end for start, end in starts)


def test_private_memory_keeps_earlier_writes_of_others_and_ignores_later_ones(file):
    """Whoever wrote it: pages that were never touched here too."""
    one = Mapping(file, 0)
    other = Mapping(file, 0)
    bytes_at(other, 5 * PAGE, 10).value = b"before"
    one.make_private([(0, 8 * PAGE)])
    bytes_at(other, 5 * PAGE, 10).value = bytes_at(other, PAGE, 10).value = b"after"
    assert bytes_at(one, 5 * PAGE, 10).value == b"before"
    assert bytes_at(one, PAGE, 10).value == b""
    other.free_pages()
    assert bytes_at(one, 5 * PAGE, 10).value == b"before"


def test_failed_mapping_raises_and_only_its_range_stays_shared(file, monkeypatch):
    one = Mapping(file, 0)
    other = Mapping(file, 0)
    real = mapping._map
    sizes = []

    def refuse_the_first(num_bytes, *rest):
        sizes.append(num_bytes)
        if len(sizes) == 1:
            raise OSError(errno.ENOMEM, "no memory")
        return real(num_bytes, *rest)

    monkeypatch.setattr(mapping, "_map", refuse_the_first)
    with pytest.raises(MemoryError, match=f"{PAGE} bytes"):
        one.make_private([(0, 10), (3 * PAGE, 5 * PAGE)])
    assert sizes == [PAGE, 2 * PAGE]
    bytes_at(other, 0, 10).value = bytes_at(other, 3 * PAGE, 10).value = b"after"
    assert bytes_at(one, 0, 10).value == b"after"
    assert bytes_at(one, 3 * PAGE, 10).value == b""


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EFAULT, errno.ENOSPC])
def test_failed_copy_raises_and_writes_are_private_all_the_same(file, monkeypatch, code):
    one = Mapping(file, 0)
    other = Mapping(file, 0)
    for start in (0, 3 * PAGE):
        bytes_at(one, start, 10).value = b"before"
    refuse_to_populate(monkeypatch, code)
    with pytest.raises(MemoryError, match="no memory for a copy"):
        one.make_private([(0, 10), (3 * PAGE, 3 * PAGE + 10)])
    for start in (0, 3 * PAGE):
        assert bytes_at(one, start, 10).value == b"before"
        bytes_at(one, start, 10).value = b"mine"
        assert bytes_at(other, start, 10).value == b"before"


def test_a_kernel_that_cannot_populate_copies_every_page_all_the_same(file, monkeypatch):
    one = Mapping(file, 0)
    other = Mapping(file, 0)
    for page in range(20):
        bytes_at(one, page * PAGE, 10).value = b"before"
    refuse_to_populate(monkeypatch, errno.EINVAL)
    one.make_private([(0, 20 * PAGE)])
    for page in range(20):
        bytes_at(other, page * PAGE, 10).value = b"after"
    assert {bytes_at(one, page * PAGE, 10).value for page in range(20)} == {b"before"}


def test_a_closed_file_can_give_no_memory_of_ones_own(file):
    one = Mapping(file, 0)
    file.close()
    with pytest.raises(MemoryError, match="cannot be mapped"):
        one.make_private([(0, 10)])


def test_a_file_costs_one_descriptor_whatever_is_mapped(file):
    before = len(os.listdir("/proc/self/fd"))
    mappings = [Mapping(file, slot) for slot in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len({one.address for one in mappings}) == 50


def test_bytes_of_a_slot_can_be_read_without_mapping_it(file):
    one = Mapping(file, 2)
    bytes_at(one, 12345, 10).value = b"abc"
    copy = file.read(2, 12345, 4)
    bytes_at(one, 12345, 10).value = b"xyz"
    assert bytes(copy) == b"abc\0"
    copy[0] = 1
    assert bytes_at(one, 12345, 10).value == b"xyz"


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=20))
def test_ranges_that_were_added_never_overlap_and_none_is_refused_without_need(pairs):
    ranges = []
    taken = set()
    for start, length in pairs:
        wanted = set(range(start, start + length))
        assert add_range(ranges, start, start + length) is not bool(wanted & taken)
        if not wanted & taken:
            taken |= wanted
    assert ranges == sorted(ranges)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 700)), max_size=12))
def test_merged_ranges_hold_every_place_are_apart_and_no_larger_than_they_need_to_be(places):
    ranges = merge_ranges(((offset, offset + length) for offset, length in places), gap=ALIGNMENT)
    for offset, length in places:
        assert sum(start <= offset and offset + length <= end for start, end in ranges) == 1
    for (_, end), (start, _) in itertools.pairwise(ranges):
        assert start >= end + ALIGNMENT
    edges = {offset for offset, _ in places}, {offset + length for offset, length in places}
    assert all(start in edges[0] and end in edges[1] for start, end in ranges)


def test_a_window_is_a_whole_number_of_chunks():
    assert WINDOW_BYTES % CHUNK_BYTES == 0
