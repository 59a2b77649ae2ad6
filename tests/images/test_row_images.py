"""Images of rows, whatever their form, have the pixels, limits and errors of the same image in a file."""

from __future__ import annotations

import io
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader.errors import ImageError
from lit_loader.images import EncodedImage, ImageReading
from lit_loader.images.row_images import RowImages, RowReading, content_of, header_of, unpacked
from tests.support.row_data import encoded, pixels_of

FOLDER = "/rows/0123/train"


def reading_of(*images, folder=None, **settings):
    rows = [{"image": image} for image in images]
    return RowReading(images={FOLDER: RowImages("train", rows, "image", folder)}, **settings)


def read(image, **settings):
    return reading_of(image, **settings).read(f"{FOLDER}/000000")


def turned(orientation, format="JPEG"):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(3, format, exif=exif)


def sixteen_bits():
    file = io.BytesIO()
    Image.fromarray(np.linspace(0, 4095, 32 * 32, dtype=np.uint16).reshape(32, 32)).save(file, "PNG")
    return file.getvalue()


FILES = {
    "png": encoded(0),
    "jpeg": encoded(1, "JPEG"),
    "webp": encoded(2, "WEBP"),
    "bmp": encoded(2, "BMP"),
    "turned jpeg": turned(6),
    "turned png": turned(8, "PNG"),
    "16 bits": sixteen_bits(),
}
SETTINGS = [{}, {"exif_orientation": False}, {"decode": "fast"}, {"sixteen_bit_max": 4095}]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_encoded_images_have_the_pixels_and_sizes_of_files(tmp_path, name, settings):
    path = tmp_path / "image"
    path.write_bytes(FILES[name])
    expected = ImageReading(**settings).read(path)
    data = FILES[name]
    arrow = memoryview(data).cast("b")
    for image in (data, bytearray(data), arrow, {"bytes": data, "path": "no/file.png"}):
        assert torch.equal(read(image, **settings), expected)
    for image in (path, str(path), {"bytes": None, "path": str(path)}):
        assert torch.equal(read(image, folder=tmp_path, **settings), expected)
    assert reading_of(data, **settings).size(f"{FOLDER}/000000") == tuple(expected.shape[1:])
    assert ImageReading(**settings).size(path) == tuple(expected.shape[1:])


@pytest.mark.parametrize("name", FILES)
def test_pillow_images_have_the_pixels_of_their_files(tmp_path, name):
    path = tmp_path / "image"
    path.write_bytes(FILES[name])
    expected = ImageReading().read(path)
    with Image.open(path) as image:
        # Pillow has all bytes of a WebP in memory.
        if name != "webp":
            with pytest.raises(ImageError, match=r"the pixels of the PIL image are not loaded; call image.load\(\)"):
                read(image)
        image.load()
        # Not a part of the image that spawned workers get.
        image.getexif()[0x0112] = 3
        for copied in (image, pickle.loads(pickle.dumps(image))):
            assert torch.equal(read(copied), expected)
            assert header_of(unpacked(copied, None))[:2] == (expected.shape[2], expected.shape[1])


def test_pillow_images_stay_as_they_are():
    image = Image.fromarray(pixels_of(0)).quantize(8)
    image.info["transparency"] = 3
    original = (image.mode, dict(image.info), image.tobytes())
    pixels = read(image)
    pixels.fill_(0)
    assert (image.mode, dict(image.info), image.tobytes()) == original


@pytest.mark.parametrize(
    "array",
    [
        pixels_of(0),
        pixels_of(0)[..., :1],
        pixels_of(0)[..., 0],
        np.concatenate([pixels_of(0), np.zeros((48, 64, 1), np.uint8)], axis=2),
        pixels_of(0)[::-1],
        torch.from_numpy(pixels_of(0)).permute(2, 0, 1),
        torch.from_numpy(pixels_of(0))[..., 1],
    ],
    ids=["RGB", "one channel", "gray", "RGBA", "negative strides", "tensor", "gray tensor"],
)
def test_arrays_become_rgb_images_in_memory_of_their_own(array):
    rows = array.permute(1, 2, 0) if isinstance(array, torch.Tensor) and array.ndim == 3 else array
    rows = np.asarray(rows if rows.ndim == 3 else rows[..., None])[..., :3]
    expected = np.broadcast_to(rows, (48, 64, 3)).copy()
    pixels = read(array)
    assert np.array_equal(pixels.permute(1, 2, 0), expected)
    # Decoders write the channels of a pixel next to each other, and transforms rely on it for speed.
    assert pixels.permute(1, 2, 0).is_contiguous()
    pixels.fill_(0)
    assert np.array_equal(read(array).permute(1, 2, 0), expected)


def test_read_only_arrays_are_read_without_a_warning():
    array = pixels_of(0)
    array.flags.writeable = False
    assert np.array_equal(read(array).permute(1, 2, 0), array)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, r"the image is missing \(None\)"),
        (b"", r"the file is empty \(0 bytes\)"),
        (b"GIF89a not really", r"cannot be (decoded|identified)"),
        (encoded(0)[:-40], r"cannot be decoded"),
        (encoded(0, "JPEG")[:300], r"cannot be (decoded|identified)"),
        (12, r"expected an image as bytes, a path, .*got int; choose the column with image="),
        (pixels_of(0).astype(np.float32), r"expected a uint8 array \(H, W\) or .*got float32 \(48, 64, 3\)"),
        (pixels_of(0).transpose(2, 0, 1), r"expected a uint8 array .*got uint8 \(3, 48, 64\); convert"),
        (torch.zeros(48, 64, 3, dtype=torch.uint8), r"expected a uint8 tensor .*got torch.uint8 \(48, 64, 3\)"),
        (Image.new("F", (4, 4)), r"mode F .*has no agreed range"),
        ("/etc/hostname", r"'/etc/hostname' is the path of a file; give the folder .*root='/etc'"),
    ],
)  # fmt: skip
def test_wrong_images_name_set_row_and_column(image, message):
    with pytest.raises(ImageError, match=rf"^row 0 of train, column 'image'.*: {message}"):
        read(image)


@pytest.mark.parametrize("image", [encoded(0), encoded(0, "JPEG"), Image.fromarray(pixels_of(0)), pixels_of(0)])
def test_max_pixels_holds_for_every_form(image):
    with pytest.raises(ImageError, match=r"^row 0 of train, column 'image': .*max_pixels=100"):
        read(image, max_pixels=100)


@pytest.mark.parametrize("path", ["../secret.png", "/etc/passwd", "a/../../secret.png", "{folder}/../a.png", "\ud800"])
def test_paths_do_not_leave_the_folder(tmp_path, path):
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.png").write_bytes(encoded(0))
    path = path.format(folder=tmp_path / "images")
    with pytest.raises(ImageError, match=r"row 0 of train, column 'image': .* (is not in root=|has characters)"):
        read(path, folder=tmp_path / "images")


def test_missing_files_and_pipes_are_errors_of_their_row(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("none.png", "pipe.png"):
        with pytest.raises(ImageError, match=name):
            read(name, folder=tmp_path)
        assert isinstance(header_of(unpacked(name, tmp_path)), str)


def test_paths_of_files_are_read_as_files(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded(5))
    reading = reading_of(pixels_of(0))
    assert torch.equal(reading.read(path), ImageReading().read(path))
    assert reading.size(path) == (48, 64)


def test_fast_decoding_reads_regions_of_encoded_jpegs():
    image = reading_of(encoded(1, "JPEG"), decode="fast").open(f"{FOLDER}/000000")
    assert isinstance(image, EncodedImage)


def test_readings_of_several_sets_are_combined():
    first = reading_of(pixels_of(0), max_pixels=10_000)
    both = RowReading.extending(first, {"/rows/9/val": RowImages("val", [{"x": pixels_of(1)}], "x", None)})
    assert both.max_pixels == 10_000
    assert np.array_equal(both.read(f"{FOLDER}/000000").permute(1, 2, 0), pixels_of(0))
    assert np.array_equal(both.read("/rows/9/val/000000").permute(1, 2, 0), pixels_of(1))


@pytest.mark.parametrize("is_encoded", [True, False])
def test_sixteen_bit_images_are_reported(is_encoded):
    image = sixteen_bits() if is_encoded else Image.open(io.BytesIO(sixteen_bits()))
    if not is_encoded:
        image.load()
    with pytest.warns(UserWarning, match=r"1 of 2 inspected images are 16-bit grayscale.*4095"):
        reading_of(image, encoded(0), None).warn_of_sixteen_bits([f"{FOLDER}/00000{i}" for i in range(3)])


def test_contents_differ_for_different_images_and_stay_for_equal_ones(tmp_path):
    forms = [encoded(0), encoded(0, "JPEG"), encoded(1, "BMP"), pixels_of(0), pixels_of(1), pixels_of(0)[..., 0]]
    forms += [Image.fromarray(pixels_of(0)), Image.fromarray(pixels_of(1))]
    for colour in ((255, 0, 0), (0, 0, 255)):
        palette_image = Image.new("P", (8, 8))
        palette_image.putpalette(colour * 256)
        forms.append(palette_image)
    contents = [content_of(unpacked(form, None)) for form in forms]
    assert len(set(contents)) == len(forms)
    assert [content_of(unpacked(form, None)) for form in forms] == contents
    (tmp_path / "copy.png").write_bytes(forms[0])
    assert content_of(unpacked("copy.png", tmp_path)) == content_of(memoryview(forms[0])) == contents[0]
