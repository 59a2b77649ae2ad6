"""Mappings of slots: shared, freed and made private; the file of slots; byte ranges."""

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


@pytest.fixture
def mappings(file):
    """Two mappings of one slot: of this process, and as another process would have it."""
    return Mapping(file, 0), Mapping(file, 0)


def bytes_at(mapping, start):
    return (ctypes.c_char * 10).from_address(mapping.address + start)


def write(mapping, text, *starts):
    for start in starts:
        bytes_at(mapping, start).value = text


def read(mapping, *starts):
    return [bytes_at(mapping, start).value for start in starts]


def test_mappings_of_one_slot_share_memory_and_two_slots_do_not(file):
    write(Mapping(file, 3), b"abc", 5000)
    assert read(Mapping(file, 3), 5000) == [b"abc"]
    assert read(Mapping(file, MAX_SLOTS - 1), 5000) == [b""]


def test_written_pages_take_memory_until_they_are_freed(file, mappings):
    local, remote = mappings
    ctypes.memset(local.address, 1, 40 * CHUNK_BYTES)
    assert os.fstat(file.fd).st_blocks * 512 == 40 * CHUNK_BYTES
    remote.free_pages()
    assert os.fstat(file.fd).st_blocks == 0
    assert read(local, 0) == [b""]


def test_pages_are_populated_once_until_they_are_freed(file, monkeypatch):
    calls = []
    libc = mapping._libc
    local = Mapping(file, 0)

    class CountedLibc:
        def __getattr__(self, name):
            return getattr(libc, name)

        def madvise(self, address, size, advice):
            calls.append((address - local.address, size, advice))
            return libc.madvise(address, size, advice)

    monkeypatch.setattr(mapping, "_libc", CountedLibc())
    local.touch(10, CHUNK_BYTES)
    local.touch(0, 2 * CHUNK_BYTES)
    local.touch(CHUNK_BYTES, CHUNK_BYTES + 1)
    populate = mapping._MADV_POPULATE_WRITE
    assert calls == [(0, 2 * CHUNK_BYTES, populate), (2 * CHUNK_BYTES, CHUNK_BYTES, populate)]
    local.free_pages()
    local.touch(0, 1)
    assert calls[-1] == (0, CHUNK_BYTES, populate)


def test_private_ranges_keep_address_and_contents_and_are_no_longer_shared(mappings):
    local, remote = mappings
    write(local, b"before", 0, 3 * PAGE, 9 * PAGE)
    local.make_private([(3 * PAGE + 1, 3 * PAGE + 5), (0, 10), (4, 20)])
    write(remote, b"after", 0, 3 * PAGE, 9 * PAGE)
    assert read(local, 0, 3 * PAGE, 9 * PAGE) == [b"before", b"before", b"after"]
    write(local, b"mine", 0)
    assert read(remote, 0) == [b"after"]


def test_empty_ranges_map_nothing(file):
    local = Mapping(file, 0)
    num_before = num_maps()
    local.make_private([(0, 0), (7, 7), (PAGE, PAGE)])
    assert num_maps() == num_before


def test_collected_mapping_is_unmapped_with_its_private_ranges(file):
    num_before = num_maps()
    local = Mapping(file, 0)
    local.make_private([(PAGE, 2 * PAGE), (5 * PAGE, 6 * PAGE)])
    assert num_maps() > num_before
    address = local.address
    del local
    assert num_maps() == num_before
    with open("/proc/self/maps") as lines:
        ranges = [tuple(int(edge, 16) for edge in line.split()[0].split("-")) for line in lines]
    assert not any(start <= address + PAGE < end for start, end in ranges)


def test_private_memory_has_earlier_writes_of_others_and_no_later_ones(mappings):
    local, remote = mappings
    write(remote, b"before", 5 * PAGE)
    local.make_private([(0, 8 * PAGE)])
    write(remote, b"after", PAGE, 5 * PAGE)
    assert read(local, PAGE, 5 * PAGE) == [b"", b"before"]
    remote.free_pages()
    assert read(local, 5 * PAGE) == [b"before"]


def test_failed_mapping_raises_and_only_its_range_stays_shared(mappings, monkeypatch):
    local, remote = mappings
    real_map = mapping._map
    sizes = []

    def refuse_the_first(num_bytes, *args):
        sizes.append(num_bytes)
        if len(sizes) == 1:
            raise OSError(errno.ENOMEM, "no memory")
        return real_map(num_bytes, *args)

    monkeypatch.setattr(mapping, "_map", refuse_the_first)
    with pytest.raises(MemoryError, match=f"{PAGE} bytes"):
        local.make_private([(0, 10), (3 * PAGE, 5 * PAGE)])
    assert sizes == [PAGE, 2 * PAGE]
    write(remote, b"after", 0, 3 * PAGE)
    assert read(local, 0, 3 * PAGE) == [b"after", b""]


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EFAULT, errno.ENOSPC])
def test_failed_copy_raises_and_writes_are_private_nevertheless(mappings, monkeypatch, code):
    local, remote = mappings
    write(local, b"before", 0, 3 * PAGE)
    refuse_to_populate(monkeypatch, code)
    with pytest.raises(MemoryError, match="no memory for a copy"):
        local.make_private([(0, 10), (3 * PAGE, 3 * PAGE + 10)])
    assert read(local, 0, 3 * PAGE) == [b"before", b"before"]
    write(local, b"mine", 0, 3 * PAGE)
    assert read(remote, 0, 3 * PAGE) == [b"before", b"before"]


def test_every_page_is_copied_on_a_kernel_without_populate(mappings, monkeypatch):
    local, remote = mappings
    starts = [page * PAGE for page in range(20)]
    write(local, b"before", *starts)
    refuse_to_populate(monkeypatch, errno.EINVAL)
    local.make_private([(0, 20 * PAGE)])
    write(remote, b"after", *starts)
    assert read(local, *starts) == [b"before"] * 20


def test_closed_file_cannot_be_made_private(file):
    local = Mapping(file, 0)
    file.close()
    with pytest.raises(MemoryError, match="cannot be mapped"):
        local.make_private([(0, 10)])


def test_mappings_need_no_descriptors(file):
    num_before = len(os.listdir("/proc/self/fd"))
    mappings = [Mapping(file, slot) for slot in range(50)]
    assert len(os.listdir("/proc/self/fd")) == num_before
    assert len({mapping.address for mapping in mappings}) == 50


def test_unmapped_slot_can_be_read(file):
    local = Mapping(file, 2)
    write(local, b"abc", 12345)
    copy = file.read(2, 12345, 4)
    write(local, b"xyz", 12345)
    assert bytes(copy) == b"abc\0"
    copy[0] = 1
    assert read(local, 12345) == [b"xyz"]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=20))
def test_a_range_is_added_unless_it_overlaps_another(pairs):
    ranges = []
    covered = set()
    for start, length in pairs:
        positions = set(range(start, start + length))
        assert add_range(ranges, start, start + length) is positions.isdisjoint(covered)
        if positions.isdisjoint(covered):
            covered |= positions
    assert ranges == sorted(ranges)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 700)), max_size=12))
def test_merged_ranges_are_apart_and_no_larger_than_needed(places):
    ranges = merge_ranges(((offset, offset + length) for offset, length in places), gap=ALIGNMENT)
    for offset, length in places:
        assert sum(start <= offset and offset + length <= end for start, end in ranges) == 1
    for (_, end), (start, _) in itertools.pairwise(ranges):
        assert start >= end + ALIGNMENT
    assert {start for start, _ in ranges} <= {offset for offset, _ in places}
    assert {end for _, end in ranges} <= {offset + length for offset, length in places}


def test_window_is_a_whole_number_of_chunks():
    assert WINDOW_BYTES % CHUNK_BYTES == 0
