"""Images that lie inside of LabelMe's JSON files are read, sized and converted as files are."""

from __future__ import annotations

import base64
import json
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.annotations.formats import ReadPolicy, read_annotations
from lit_loader.app.commands import main
from lit_loader.datasets import DetectionDataset
from lit_loader.errors import AnnotationError, ImageError
from lit_loader.images import ImageReading, decode_image, open_image
from tests.support.structured_sets import labelme_shape

BOX = labelme_shape("rectangle", "cat", [1, 2], [30, 20])


def encoded(format="PNG", size=(40, 24)):
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def write(root, data, name="a", **more):
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    document = {"shapes": [BOX], "imagePath": f"{name}.png", "imageData": text} | more
    (root / f"{name}.json").write_text(json.dumps(document))
    return root


def read(root, **options):
    return read_annotations("labelme", root, use_cache=False, progress=False, **options)


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
@pytest.mark.parametrize("decode", ["exact", "fast"])
def test_an_embedded_image_has_its_size_and_pixels(tmp_path, format, decode):
    data = encoded(format)
    table = read(write(tmp_path, data))
    assert (list(table.image_paths), list(table.image_ids)) == (["a.json"], ["a.png"])
    assert (table.widths.tolist(), table.heights.tolist()) == ([40], [24])
    (tmp_path / "beside").write_bytes(data)
    pixels = decode_image(tmp_path / "beside")
    assert torch.equal(decode_image(table.image_path(0)), pixels)
    assert torch.equal(open_image(table.image_path(0)).read(), pixels)
    image, target = DetectionDataset(table, reading=ImageReading(decode=decode))[0]
    assert torch.equal(torch.as_tensor(image), pixels)
    assert target["boxes"].tolist() == [[1, 2, 30, 20]]


def test_the_file_beside_is_taken_where_it_is_there(tmp_path):
    write(tmp_path, encoded())
    Image.new("RGB", (40, 24)).save(tmp_path / "a.png")
    assert list(read(tmp_path).image_paths) == ["a.png"]


@pytest.mark.parametrize("data", ["", "####", "AAAA", "a", 7])
def test_invalid_embedded_images_raise_errors_that_name_the_file(tmp_path, data):
    write(tmp_path, data)
    with pytest.raises(AnnotationError, match=r"there is no image 'a\.png'|size of 'a\.json' cannot be read"):
        read(tmp_path)
    with pytest.raises(ImageError, match=r"a\.json: "):
        decode_image(tmp_path / "a.json")
    table = read(tmp_path, policy=ReadPolicy(missing_image="keep", unreadable_image="keep"))
    assert table.widths.tolist() == [0]


def test_other_json_files_hold_no_image(tmp_path):
    for text in ("{}", "[]", "{", "[" * 200_000, '{"imageData": null}'):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(ImageError, match=r"a\.json:"):
            decode_image(tmp_path / "a.json")


@pytest.fixture
def convert(tmp_path, capsys):
    """Convert the set of one LabelMe file with this image embedded; return the exit code and standard error."""

    def run(data, *, is_linked=False):
        (tmp_path / "set").mkdir()
        write(tmp_path / "set", data, imageWidth=40, imageHeight=24)
        if is_linked:  # as git-annex and the caches of model hubs keep files
            (tmp_path / "set/a.json").rename(tmp_path / "0f3a")
            (tmp_path / "set/a.json").symlink_to(tmp_path / "0f3a")
        words = ["convert", "labelme", "set", "train=.", "--to", "coco", "--out", "new", "--cache-dir", "cache"]
        words[2], words[7], words[9] = (str(tmp_path / name) for name in ("set", "new", "cache"))
        return main(words), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("format", "ending"), [("PNG", "png"), ("JPEG", "jpeg"), ("JPEG2000", "jp2"), ("TIFF", "tiff")]
)
@pytest.mark.parametrize("is_linked", [False, True])
def test_converted_sets_have_them_as_files(convert, tmp_path, format, ending, is_linked):
    data = encoded(format)
    assert convert(data, is_linked=is_linked) == (0, "")
    assert (tmp_path / f"new/images/a.{ending}").read_bytes() == data
    table = read_annotations("coco", tmp_path / "new", "annotations/train.json", use_cache=False)
    assert list(table.image_paths) == [f"images/a.{ending}"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"P6\n90000 90000\n255\n", "the embedded image cannot be read (DecompressionBombError: "),
        (b"no image", "the embedded image cannot be read (UnidentifiedImageError: "),
        (encoded("ICO"), "the embedded image would have the extension '.ico', which no format reads"),
    ],
)
def test_an_image_that_cannot_become_a_file_is_an_error_that_names_it(convert, tmp_path, data, words):
    code, error = convert(data)
    assert code == 1
    assert f"set/a.json: {words}" in error
    assert not (tmp_path / "new").exists()
