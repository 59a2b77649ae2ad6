"""Galleries: files by their ending, sheets that stay readable, and their value in a notebook."""

from __future__ import annotations

import re

import pytest
import torch
from PIL import Image

from lit_loader.errors import SettingError
from lit_loader.inspection import Gallery, encode_picture

PICTURE = torch.full((3, 40, 60), 90, dtype=torch.uint8)


def gallery(count, picture=PICTURE):
    pictures = Gallery("a set")
    for number in range(count):
        pictures.add(picture, f"img/{number}.jpg")
    return pictures


def size_of(path):
    with Image.open(path) as image:
        return image.size


def test_a_page_has_each_picture_with_its_caption_under_its_heading(tmp_path):
    pictures = Gallery("a set")
    for heading in ("train", "val"):
        pictures.add_section(heading, "2 of 9 images")
        pictures.add(PICTURE, f"{heading}/<i>.jpg")
    pictures.sections[1].columns = ["class"]
    pictures.sections[1].rows = [["cat"]]
    assert pictures.save(tmp_path / "new" / "show.html") == [tmp_path / "new" / "show.html"]
    text = (tmp_path / "new" / "show.html").read_text()
    marks = [
        "<h1>a set",
        ">train</h2>",
        "train/&lt;i&gt;.jpg</figcaption>",
        ">val</h2>",
        "val/&lt;i&gt;.jpg",
        "<td>cat",
    ]
    assert [text.index(mark) for mark in marks] == sorted(text.index(mark) for mark in marks)
    assert text.count("data:image/jpeg;base64,") == len(pictures) == 2


def test_a_sheet_shows_each_picture_once(tmp_path):
    pictures = Gallery("a set")
    colours = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]
    for colour in colours:
        pictures.add(torch.tensor(colour, dtype=torch.uint8)[:, None, None].expand(3, 40, 60), "caption")
    (path,) = pictures.save(tmp_path / "show.png")
    with Image.open(path) as image:
        assert image.format == "PNG"
        counts = {colour: count for count, colour in image.getcolors(2**16)}
    for colour in colours:
        similar = sum(n for c, n in counts.items() if max(abs(a - b) for a, b in zip(c, colour, strict=True)) < 12)
        assert similar == pytest.approx(40 * 60, rel=0.05)


def test_many_pictures_become_several_sheets(tmp_path):
    paths = gallery(51).save(tmp_path / "show.png")
    assert [path.name for path in paths] == ["show.png", "show-2.png", "show-3.png"]
    sizes = [size_of(path) for path in paths]
    assert sizes[0] == sizes[1] != sizes[2]


def test_sheets_of_an_earlier_gallery_are_deleted_but_no_other_pictures(tmp_path):
    gallery(76).save(tmp_path / "show.png")
    Image.new("RGB", (8, 6)).save(tmp_path / "show-5.png")
    gallery(26).save(tmp_path / "show.png")
    assert {path.name for path in tmp_path.iterdir()} == {"show.png", "show-2.png", "show-5.png"}
    Image.new("RGB", (8, 6)).save(tmp_path / "photo-2.png")
    gallery(1).save(tmp_path / "photo.png")
    assert (tmp_path / "photo-2.png").exists()


def test_large_pictures_fill_a_sheet_earlier(tmp_path, monkeypatch):
    monkeypatch.setattr("lit_loader.inspection.gallery._MAX_PIXELS", 2 * 40 * 60)
    assert len(gallery(5).save(tmp_path / "show.png")) == 3
    assert len(gallery(1, torch.full((3, 400, 600), 90, dtype=torch.uint8)).save(tmp_path / "show.png")) == 1


def test_sections_have_sheets_of_their_own(tmp_path):
    pictures = gallery(1)
    pictures.add_section("val")
    pictures.add(PICTURE, "b")
    assert len(pictures.save(tmp_path / "show.png")) == 2


def test_a_gallery_without_pictures_is_saved(tmp_path):
    assert size_of(*Gallery("nothing").save(tmp_path / "show.png")) > (0, 0)
    assert "<h1>nothing</h1>" in Gallery("nothing").save(tmp_path / "show.html")[0].read_text()


@pytest.mark.parametrize("name", ["show.pdf", "show", "show.jpg"])
def test_other_endings_are_refused(tmp_path, name):
    with pytest.raises(SettingError, match=r"must end in \.html or \.png; give a name such as show\.html"):
        gallery(1).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_notebook_shows_all_parts_without_the_style_of_a_page():
    pictures = gallery(2)
    pictures.add_section("val <b>", "2 of 9 images")
    pictures.sections[1].columns = ["class"]
    pictures.sections[1].rows = [["cat"]]
    html = pictures._repr_html_()
    assert html.count("<figure") == html.count("<img") == 2
    assert all(part in html for part in ("a set", "val &lt;b&gt;", "2 of 9 images", "<td>cat"))
    assert not re.search("<style|<html|<body|<script|http", html)


def test_a_picture_is_encoded_with_nearly_the_same_pixels(tmp_path):
    stripes = torch.zeros(3, 16, 16, dtype=torch.uint8)
    stripes[0, ::2] = 255  # red lines of one pixel, which a subsampled JPEG would blur
    (tmp_path / "a.jpg").write_bytes(encode_picture(stripes))
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.getpixel((8, 8))[0] > 230
        assert image.getpixel((8, 9))[0] < 25
