"""Explanations of a choice of settings that are not the fastest."""

from __future__ import annotations

import pytest

from lit_loader.app.tuning import INLINE, Candidate, TuningResult, explain_choice, pick
from tests.support.surfaces import figures

TWO = Candidate(2, "fork", 2)
FOUR = Candidate(4, "fork", 2)


def result_of(rates):
    measured = {candidate: [figures(candidate, rate) for rate in values] for candidate, values in rates.items()}
    return TuningResult(pick(measured), measured, {})


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        ({TWO: [100.0] * 5, FOUR: [101.0] * 5}, "rates within 2% count as equal, and then fewer workers win"),
        ({INLINE: [102.0] * 5, TWO: [100.0] * 5}, "inline must win by 3%, because workers continue"),
        ({TWO: [100.0] * 5, FOUR: [150.0]}, "it was measured once, 2 fork, prefetch 2 5 times: may be luck"),
    ],
)
def test_faster_settings_that_were_not_chosen_are_explained(rates, reason):
    result = result_of(rates)
    fastest = max(rates, key=lambda candidate: rates[candidate][0])
    text = explain_choice(result)
    assert result.best == TWO
    assert text.startswith(f"{fastest!s} made {rates[fastest][0]} samples/s, more than the 100.0 of 2 fork")
    assert reason in text


def test_fastest_settings_need_no_explanation():
    assert explain_choice(result_of({INLINE: [90.0] * 3, TWO: [100.0] * 3, FOUR: [110.0] * 3})) is None
