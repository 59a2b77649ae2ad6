"""Parts of the image benchmarks: photographs, the bare calls that set the limit, and absent peers."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torchvision.transforms.v2 import functional

from benchmarks import peers
from benchmarks.bare_steps import BareSteps, bare_passes, draw_crops, draw_sizes, write_pixels
from benchmarks.photographs import find_photographs
from lit_loader.images import decode_image
from tests.support.photo_like import photo_like


@pytest.fixture
def without_wheels(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_missing_photographs_are_an_error_that_names_the_packages(tmp_path, without_wheels):
    with pytest.raises(FileNotFoundError, match="pip install scikit-image scikit-learn"):
        find_photographs(tmp_path)


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{seed}.jpg" for seed in range(2)]
    for seed, path in enumerate(paths):
        photo_like(120, 160, seed=seed).save(path, quality=90)
    return {"paths": paths, "pixels": write_pixels(paths, tmp_path / "pixels.npy")}


@pytest.mark.parametrize("views", [draw_crops((160, 120), 32)[:8], draw_sizes((160, 120), [150, 200], 300)[:8]])
def test_bare_calls_match_the_transforms_of_torchvision(files, views):
    exact, cached = (BareSteps(**files, crops=views, kind=kind) for kind in ("exact", "cached"))
    for index, view in enumerate(views):
        left, top, right, bottom = view.region
        image = decode_image(files["paths"][index % 2])
        crop = (top, left, bottom - top, right - left)
        expected = functional.resized_crop(image, *crop, list(view.size), antialias=True)
        expected = expected.flip(-1) if view.is_mirrored else expected
        assert torch.equal(cached(index), expected)
        assert torch.equal(exact(index), functional.to_dtype(expected, torch.float32, scale=True))


def test_fast_bare_calls_show_the_same_region(files):
    views = draw_crops((160, 120), 24)[:16]
    fast, cached = (BareSteps(**files, crops=views, kind=kind) for kind in ("fast", "cached"))
    for index in range(len(views)):
        difference = fast(index).double() - cached(index).double()
        assert difference.square().mean().sqrt() < 12  # of 255 levels; another region differs by at least 24


def test_pass_over_the_bare_calls_makes_every_sample(files):
    steps = BareSteps(**files, crops=draw_crops((160, 120), 32), kind="cached")
    with bare_passes({"bare": steps}, [0, 1, 1, 0, 1]) as work:
        assert work["bare"]() == 5


def test_absent_peer_is_named_with_its_package(without_wheels, capsys):
    assert not peers.has_spdl()
    assert not peers.has_ffcv()
    printed = capsys.readouterr().out
    assert "SPDL is left out: spdl.pipeline, simplejpeg, cv2 not installed; pip install spdl" in printed
    assert "FFCV is left out: ffcv not installed" in printed
