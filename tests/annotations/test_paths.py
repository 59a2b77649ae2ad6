from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.annotations.paths import check_relative
from lit_loader.errors import UnsafePathError


@pytest.mark.parametrize("relative", ["a.jpg", "a/b.jpg", "./a", "...", "a..b", "..a", "äö.jpg"])
def test_paths_below_the_root_are_returned_as_they_are(relative):
    assert check_relative(relative) == relative


@pytest.mark.parametrize("relative", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "..", "a\0b", "a\\..\\b"])
def test_unsafe_paths_are_refused_naming_file_and_line(relative):
    with pytest.raises(UnsafePathError, match=r"^list\.txt:7: path"):
        check_relative(relative, source="list.txt", line=7)


@given(st.text(alphabet="./\\a\0", max_size=12))
def test_accepted_paths_stay_under_root(relative):
    with contextlib.suppress(UnsafePathError):
        assert f"{os.path.normpath(f'/root/{check_relative(relative)}')}/".startswith("/root/")
