"""Odd image files found in the wild, where the shared data is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lit_loader.errors import ImageError
from lit_loader.images import decode_image

ROOT = Path(__file__).parents[3] / "shared" / "data" / "nasty_images"
pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="the shared folder data/nasty_images is not here")

REFUSED = {
    "pillow/truncated_jpeg.jpg": "truncated",
    "pillow/truncated_image.png": "truncated",
    "pillow/broken.png": "cannot be identified",
    # pixels whole, end damaged
    "pillow/broken_data_stream.png": "unrecognized data stream",
    "pillow/truncated_end_chunk.png": "Truncated File Read",
    "pillow/decompression_bomb.gif": "max_pixels",
    "pillow/png_decompression_dos.png": "too large",
    "icevision_gray_scale/test_1_bands_int8.tif": "mode L",
    "icevision_gray_scale/test_1_bands_int16.tif": "mode I",
    "icevision_gray_scale/test_1_bands_int32.tif": "mode I",
    "icevision_gray_scale/test_1_bands_float32.tif": "mode F",
}
SHAPES = {
    "mmcv/color_exif.jpg": (3, 400, 300),
    "mmcv/grayscale.jpg": (3, 300, 400),
    "mmcv/gray_alpha.png": (3, 400, 500),
    "pillow/orientation_rectangle.jpg": (3, 2, 1),
    "pillow/hopper_bad_exif.jpg": (3, 500, 500),
    "pillow/invalid-exif.jpg": (3, 200, 200),
    "pillow/truncated_exif_dpi.jpg": (3, 640, 480),
    "pillow/truncated_app14.jpg": (3, 100, 100),
    "pillow/tiff_16bit_RGB.tiff": (3, 40, 100),
    "pillow/tRNS_null_1x1.png": (3, 1, 1),
    "pillow/transparent.webp": (3, 150, 200),
    "icevision_gray_scale/gray_scale_h_50_w_50_image.tiff": (3, 50, 50),
    "icevision_gray_scale/grayscale_int8.png": (3, 200, 150),
}


def distance(a, b):
    return (decode_image(ROOT / a).int() - decode_image(ROOT / b).int()).abs().float().mean()


def test_every_file_decodes_or_is_refused_by_name():
    images = [path for path in sorted(ROOT.rglob("*.*")) if path.suffix != ".txt"]
    assert len(images) == 51
    for path in images:
        name = path.relative_to(ROOT).as_posix()
        if name in REFUSED:
            with pytest.raises(ImageError, match=REFUSED[name]) as caught:
                decode_image(path)
            assert str(caught.value).startswith(str(path))
            continue
        pixels = decode_image(path)
        assert pixels.dtype == torch.uint8
        assert pixels.ndim == 3
        assert pixels.shape == SHAPES.get(name, pixels.shape)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_turned_files_look_like_the_upright_one(orientation):
    assert distance(f"pillow/hopper_orientation_{orientation}.jpg", "pillow/hopper.jpg") < 6


def test_cmyk_looks_like_its_rgb_twin():
    assert distance("pillow/pil_sample_cmyk.jpg", "pillow/pil_sample_rgb.jpg") < 6


@pytest.mark.parametrize("name", ["hopper.png", "hopper.webp", "hopper_16bit_qtables.jpg"])
def test_containers_agree(name):
    # 16-bit quantisation tables mean coarse steps, hence the width
    assert distance(f"pillow/{name}", "pillow/hopper.jpg") < 12


@pytest.mark.parametrize("name", ["pillow/hopper_gray.jpg", "mmcv/grayscale.jpg", "pillow/bw_gradient.png"])
def test_gray_files_have_equal_channels_and_a_range(name):
    pixels = decode_image(ROOT / name)
    assert torch.equal(pixels[0], pixels[1])
    assert torch.equal(pixels[0], pixels[2])
    assert pixels.max() - pixels.min() > 100
