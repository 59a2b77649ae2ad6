"""Texts of objects: readable, and none over another one."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from lit_loader.datamodules import text_drawing
from lit_loader.datamodules.text_drawing import draw_texts, font_for, overlap, short_text, text_colour, wrapped_text

COLOURS = ["#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#800000"]


@pytest.mark.parametrize("count", [1, 5, 200])
def test_texts_do_not_cover_each_other_and_those_without_room_are_counted(count, monkeypatch):
    places = []
    free_place = text_drawing.free_place

    def noted(*arguments):
        places.append(free_place(*arguments))
        return places[-1]

    monkeypatch.setattr(text_drawing, "free_place", noted)
    boxes = torch.tensor([[90.0, 90, 180, 150]]).repeat(count, 1)
    canvas = torch.zeros(3, 240, 360, dtype=torch.uint8)
    draw_texts(canvas, boxes, ["a class with a name"] * count, [COLOURS[0]] * count)
    rectangles = [place for place in places if place is not None]
    assert not any(overlap(first, second) for first, second in combinations(rectangles, 2))
    assert all(0 <= x < right < 360 and 0 <= y < bottom < 240 for x, y, right, bottom in rectangles)
    assert len(places) == count + (None in places)  # one more for the note
    assert (None in places) == (count == 200)


def test_texts_of_a_whole_image_are_below_each_other():
    canvas = torch.zeros(3, 240, 360, dtype=torch.uint8)
    picture = draw_texts(canvas, None, ["a", "b", "c"], ["#ff0000", "#00ff00", "#0000ff"])
    column = picture[:, :, 1]
    rows = [column[channel].nonzero().flatten() for channel in range(3)]
    assert rows[0].min() == 0
    assert [int(rows[i].max()) + 1 for i in (0, 1)] == [int(rows[i].min()) for i in (1, 2)]
    assert not picture[:, int(rows[2].max()) + 1 :].any()


def test_texts_have_contrast_to_the_colour_behind_them():
    assert [text_colour(colour) for colour in ("#000000", "#4363d8", "#777777", "#3cb44b", "#ffffff")] == [
        *("white", "white", "black", "black", "black")
    ]


def test_a_long_text_is_cut_with_an_ellipsis():
    assert short_text("abcdef", 6) == "abcdef"
    assert short_text("abcdefg", 6) == "abcde\u2026"


@pytest.mark.parametrize(("first", "second"), [("кот", "пёс"), ("猫", "犬"), ("\U0001f408", "\U0001f415")])
def test_names_in_other_scripts_differ_in_the_picture(first, second):
    canvas = torch.zeros(3, 120, 360, dtype=torch.uint8)
    pictures = [draw_texts(canvas, None, [name], ["#008080"]) for name in (first, second)]
    assert not torch.equal(*pictures)


def test_characters_that_no_font_has_are_escaped(monkeypatch):
    monkeypatch.setattr(text_drawing, "_FONT_FILES", ())
    monkeypatch.setattr(text_drawing, "find_spec", lambda name: None)
    font = font_for(["猫 cat"], 14)
    assert wrapped_text("猫 cat", font, 400, max_lines=1) == [r"\u732b cat"]


def test_the_font_has_the_characters_of_the_text():
    pytest.importorskip("matplotlib")
    font = font_for(["größer, кот"], 14)
    assert wrapped_text("größer, кот", font, 400, max_lines=1) == ["größer, кот"]
    assert font_for(["cat", "\u202e"], 14).getname() != font.getname()


def test_a_very_long_text_is_cut_before_it_is_measured():
    font = font_for([], 14)
    (line,) = wrapped_text("x" * 2_000_000, font, 100, max_lines=1)
    assert line.endswith("\u2026")
    assert len(line) < 20
