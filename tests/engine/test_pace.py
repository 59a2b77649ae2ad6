"""How finely a batch is cut."""

from __future__ import annotations

import pytest

from lit_loader.engine.pace import Pace


@pytest.mark.parametrize(
    ("sample_s", "batch_size", "num_workers", "share", "expected"),
    [
        # never, and where there is nothing to share
        (1.0, 32, 2, False, 32),
        (1.0, 32, 1, None, 32),
        (1.0, 32, 1, True, 32),
        (1.0, 1, 2, True, 1),
        (1.0, 0, 2, True, 0),
        # always: evenly, whatever a sample takes
        (1e-6, 32, 2, True, 16),
        (1.0, 33, 2, True, 17),
        (1.0, 3, 8, True, 1),
        # nothing is known yet
        (None, 32, 2, None, 16),
        # slow samples are shared in pieces of five milliseconds or more, two a worker
        (0.005, 32, 2, None, 8),
        (0.001, 32, 2, None, 8),
        (0.0004, 32, 2, None, 13),
        (0.1, 4, 2, None, 1),
        (0.1, 64, 8, None, 4),
        # fast ones are not
        (0.0003, 32, 2, None, 32),
        (1e-6, 256, 2, None, 256),
        (0.0, 256, 2, None, 256),
    ],
)
def test_the_size_of_a_piece(sample_s, batch_size, num_workers, share, expected):
    pace = Pace()
    if sample_s is not None:
        pace.note(10, 10 * sample_s)
    assert pace.piece_size(batch_size, num_workers, share=share) == expected


def test_the_mean_follows_what_is_noted_and_no_samples_say_nothing():
    pace = Pace()
    pace.note(0, 5.0)
    assert pace.piece_size(32, 2, share=None) == 16  # still nothing known
    pace.note(32, 32 * 1e-6)
    assert pace.piece_size(32, 2, share=None) == 32
    for _ in range(50):
        pace.note(4, 0.4)
    assert pace.piece_size(32, 2, share=None) == 8


def test_it_keeps_up_when_some_batches_in_a_row_lay_ready_until_one_is_waited_for():
    pace = Pace()
    assert not pace.keeps_up
    for _ in range(5):
        pace.note_delivery()
    assert pace.keeps_up
    pace.note_wait()
    assert not pace.keeps_up
