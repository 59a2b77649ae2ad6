"""The picture is one, shows every line, and marks the best settings."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from lit_loader.tuning import INLINE, Candidate, save_plot
from tests.tuning.surfaces import figures

MEASURED = [
    figures(INLINE, 100, memory_bytes=1 << 28),
    *(
        figures(Candidate(n, method, 2), 90.0 * n, memory_bytes=n << 28)
        for n in (1, 2, 4)
        for method in ("fork", "thread")
    ),
    figures(Candidate(2, "fork", 4), 200.0, memory_bytes=None),
]


@pytest.fixture
def drawn(monkeypatch):
    """Every figure that was saved."""
    found, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (found.append(self), save(self, *a, **k))[1])
    return found


def test_the_file_is_a_picture(tmp_path, drawn):
    save_plot(MEASURED, Candidate(2, "fork", 4), tmp_path / "a.png", title="a title")
    with Image.open(tmp_path / "a.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape[0] > 300
    assert pixels.shape[1] > 900
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    rates, cpu, memory = drawn[0].axes
    assert drawn[0].get_suptitle() == "a title"
    lines = {line.get_label(): line.get_xydata().tolist() for line in rates.lines}
    assert lines["thread, prefetch 2"] == [[0, 100], [1, 90], [2, 180], [4, 360]]
    assert lines["fork, prefetch 4"] == [[0, 100], [2, 200]]
    assert lines["best: 2 fork, prefetch 4"] == [[2, 200]]
    assert [axis.get_ylabel() for axis in (rates, cpu, memory)] == [
        "samples/s",
        "CPU ms a sample",
        "memory, MiB",
    ]


def test_inline_alone_is_drawn_too(tmp_path, drawn):
    save_plot(MEASURED[:1], INLINE, tmp_path / "a.svg", title="")
    assert [line.get_label() for line in drawn[0].axes[0].lines] == ["inline", "best: inline"]


def test_an_extension_that_is_no_picture_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nope"):
        save_plot(MEASURED, INLINE, tmp_path / "a.nope", title="")
