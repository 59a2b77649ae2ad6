from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations.columns import TextColumn, check_offsets, frozen_array, gather_ragged

TEXTS = st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8), max_size=10)


@given(TEXTS)
def test_text_column_round_trips(strings):
    column = TextColumn.from_rows(strings)
    assert list(column) == strings
    assert column[1:] == strings[1:]
    assert len(column) == len(strings)
    assert list(pickle.loads(pickle.dumps(column))) == strings


def test_file_names_with_invalid_utf8_round_trip():
    name = b"\xff\xfe.jpg".decode("utf-8", "surrogateescape")
    assert TextColumn.from_rows([name])[0] == name


def test_row_index_accepts_negatives_and_checks_bounds():
    column = TextColumn.from_rows(["a", "b"])
    assert (column[-1], column[-2]) == ("b", "a")
    for row in (2, -3):
        with pytest.raises(IndexError):
            column[row]


def test_arrays_are_read_only_after_pickling():
    column = TextColumn.from_rows(["a"])
    for copy in (column, pickle.loads(pickle.dumps(column)), column.take(np.array([0]))):
        assert not copy.data.flags.writeable
        assert not copy.offsets.flags.writeable


@pytest.mark.parametrize("offsets", [[], [1, 2], [0, 2, 1, 3], [0, 2], [0, 4]])
def test_invalid_offsets_are_refused(offsets):
    with pytest.raises(ValueError, match="must start at 0"):
        check_offsets(np.array(offsets, dtype=np.int64), total=3, name="rows")


def test_columns_of_other_types_are_refused():
    with pytest.raises(ValueError, match=r"offsets of a TextColumn must be a vector of int64, got int32"):
        TextColumn(np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.uint8))


def test_gathered_positions_equal_the_plain_loop():
    offsets = np.array([0, 2, 2, 5], dtype=np.int64)
    positions, gathered = gather_ragged(offsets, np.array([2, 0, 1, 2]))
    assert positions.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert gathered.tolist() == [0, 3, 5, 5, 8]


def test_read_only_array_is_not_copied():
    mine = np.zeros(3, dtype=np.int64)
    assert not np.may_share_memory(frozen_array(mine, np.int64, "x"), mine)
    mine.flags.writeable = False
    assert frozen_array(mine, np.int64, "x") is mine
