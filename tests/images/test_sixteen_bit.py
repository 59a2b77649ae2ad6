"""16-bit images become 8-bit ones by a stated rule: reported, and set by ``sixteen_bit_max``."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from lit_loader import ClassificationDataModule
from lit_loader.annotations.formats import read_annotations
from lit_loader.datasets import ClassificationDataset, FormatSource
from lit_loader.images import CacheSettings, ImageReading, decode_image

NUM_IMAGES = 5


def image_folder(root, *, largest, dtype=np.uint16, ending="png"):
    values = np.linspace(0, largest, 12 * 9).reshape(12, 9).round().astype(dtype)
    for number in range(NUM_IMAGES):
        path = root / "ab"[number % 2] / f"{number}.{ending}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(values).save(path)
    return values


def table_of(root):
    return read_annotations("image_folder", root, use_cache=False, num_workers=0, progress=False)


@pytest.mark.parametrize("ending", ["png", "tiff"])
def test_images_of_12_bits_are_reported_with_their_count_and_the_remedy(tmp_path, ending):
    image_folder(tmp_path, largest=4095, ending=ending)
    with pytest.warns(UserWarning, match="16-bit grayscale") as caught:
        dataset = ClassificationDataset(table_of(tmp_path))
    (message,) = (str(warning.message) for warning in caught)
    assert "5 of 5 inspected images" in message
    assert "The largest value of the first 4 is 4095, which becomes 16" in message
    assert "give sixteen_bit_max=4095 for 12-bit data" in message
    assert dataset[0][0].max() == 16


@pytest.mark.parametrize("decode", ["exact", "fast"])
@pytest.mark.parametrize("cache", [True, False])
def test_the_given_value_becomes_255_without_a_report(tmp_path, cache, decode):
    (tmp_path / "images").mkdir()
    values = image_folder(tmp_path / "images", largest=4200)
    settings = CacheSettings(cache_dir=tmp_path / "cache", progress=False)
    table = table_of(tmp_path / "images")
    pixels = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for largest in (4095, 65535):
            reading = ImageReading(sixteen_bit_max=largest, decode=decode)
            dataset = ClassificationDataset(table, reading=reading, cache=settings if cache else False)
            pixels.append(dataset[0][0])
    expected = np.minimum(np.floor(values.astype(float) * 255 / 4095 + 0.5), 255).astype(np.uint8)
    assert torch.equal(pixels[0], torch.from_numpy(expected).expand(3, -1, -1))
    assert pixels[0].dtype == torch.uint8
    assert pixels[1].max() == 16


def test_65535_gives_the_bits_of_the_default(tmp_path):
    Image.fromarray(np.arange(65536, dtype=np.uint16).reshape(256, 256)).save(tmp_path / "all.png")
    expected = (np.arange(65536) + 128) // 257
    assert decode_image(tmp_path / "all.png")[0].flatten().tolist() == expected.tolist()
    assert torch.equal(decode_image(tmp_path / "all.png", sixteen_bit_max=65535), decode_image(tmp_path / "all.png"))


def test_colour_of_16_bits_is_reported(tmp_path, shared_data):
    (tmp_path / "a").mkdir()
    source = shared_data / "nasty_images" / "pillow" / "tiff_16bit_RGB.tiff"
    (tmp_path / "a" / "colour.tiff").write_bytes(source.read_bytes())
    with pytest.warns(UserWarning, match="1 of 1 inspected images are 16-bit colour, and only the high byte"):
        ClassificationDataset(table_of(tmp_path))


def test_8_bit_and_unreadable_images_are_not_reported(tmp_path):
    image_folder(tmp_path, largest=255, dtype=np.uint8)
    table = table_of(tmp_path)
    (tmp_path / "b" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = ClassificationDataset(table)
    assert dataset[0][0].max() == 255


@pytest.mark.parametrize("wrong", [0, -1, 65536, 4095.0, True, "4095"])
def test_a_value_that_no_16_bits_have_is_refused(wrong):
    with pytest.raises(ValueError, match="sixteen_bit_max="):
        ImageReading(sixteen_bit_max=wrong)


def test_a_data_module_takes_the_value_in_its_reading_settings(tmp_path):
    image_folder(tmp_path, largest=4095)
    source = FormatSource(format="image_folder", root=tmp_path, train=".", cache_dir=tmp_path / "cache")
    datamodule = ClassificationDataModule(
        source, train_transforms={"size": 8, "to_float": False}, reading=ImageReading(sixteen_bit_max=4095)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = datamodule.first_batch("train")
    assert batch.images.max() > 200
