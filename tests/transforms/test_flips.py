"""A flip mirrors exactly, names left points right, and refuses to guess which those are."""

from __future__ import annotations

import pickle

import PIL.Image
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader.transforms import RandomHorizontalFlip, RandomVerticalFlip
from tests.support.drawn_samples import PAIRS, draw
from tests.support.seeded import seeded

FLIPS = [RandomHorizontalFlip, RandomVerticalFlip]


@pytest.mark.parametrize("flip", FLIPS)
def test_flipping_twice_gives_the_sample_back(flip):
    transform = flip(p=1, flip_pairs=PAIRS)
    sample = draw()
    image, target = transform(*transform(*draw()))
    assert torch.equal(image, sample[0])
    for name in ("boxes", "keypoints", "visibility", "labels"):
        torch.testing.assert_close(target[name], sample[1][name])
        assert type(target[name]) is type(sample[1][name])


def test_points_go_where_the_corners_of_boxes_go():
    image, target = draw()
    target["keypoints"] = tv_tensors.KeyPoints(target["boxes"].reshape(2, 2, 2), canvas_size=(110, 150))
    target["visibility"] = target["visibility"][:, :2]
    _, flipped = RandomHorizontalFlip(p=1, flip_pairs=[])(image, target)
    assert flipped["keypoints"][:, :, 0].flip(1).tolist() == flipped["boxes"][:, [0, 2]].tolist()
    _, flipped = RandomVerticalFlip(p=1, flip_pairs=[])(image, target)
    assert flipped["keypoints"][:, :, 1].flip(1).tolist() == flipped["boxes"][:, [1, 3]].tolist()


@pytest.mark.parametrize("flip", FLIPS)
def test_visibility_goes_with_its_point_and_absent_points_stay_absent(flip):
    image, target = draw()
    target["visibility"] = torch.tensor([[0, 2, 1], [1, 0, 2]], dtype=torch.uint8)
    _, flipped = flip(p=1, flip_pairs=PAIRS)(image, target)
    assert flipped["visibility"].tolist() == [[2, 0, 1], [0, 1, 2]]
    assert flipped["visibility"].dtype == torch.uint8


@pytest.mark.parametrize("flip", FLIPS)
def test_the_given_target_is_not_changed(flip):
    image, target = draw()
    original_target = {name: torch.clone(value) for name, value in target.items() if isinstance(value, torch.Tensor)}
    flip(p=1, flip_pairs=PAIRS)(image, target)
    assert torch.equal(image, draw()[0])
    assert all(torch.equal(target[name], value) for name, value in original_target.items())


@pytest.mark.parametrize("flip", FLIPS)
def test_a_flip_of_points_whose_pairs_were_not_declared_is_refused_even_where_it_is_not_drawn(flip):
    for p in (0, 1):
        with pytest.raises(
            ValueError, match=r"flip_pairs=None but .* 3 points .* flip_pairs=\[\] if every point keeps its name"
        ):
            flip(p=p)(*draw())
    assert flip(p=1, flip_pairs=[])(*draw())[1]["visibility"].shape == (2, 3)


def test_one_point_an_object_or_none_needs_no_pairs():
    image, target = draw()
    target["keypoints"] = tv_tensors.wrap(target["keypoints"][:, :1], like=target["keypoints"])
    target["visibility"] = target["visibility"][:, :1]
    _, flipped = RandomHorizontalFlip(p=1)(image, target)
    assert flipped["keypoints"][0, 0, 0] == pytest.approx(150 - 24.3)
    del target["keypoints"], target["visibility"]
    assert "keypoints" not in RandomHorizontalFlip(p=1)(image, target)[1]


def test_no_objects_are_fine():
    _, flipped = RandomHorizontalFlip(p=1, flip_pairs=PAIRS)(*draw(objects=()))
    assert flipped["keypoints"].shape == (0, 3, 2)
    assert flipped["visibility"].shape == (0, 3)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 0)], "twice"),
        ([(0, 1), (1, 2)], "twice"),
        ([(0,)], "two positions"),
        ([(0, 1, 2)], "two positions"),
        ([(0, -1)], "two positions"),
        ([(0, 1.0)], "two positions"),
        ([(True, 0)], "two positions"),
        (["ab"], "two positions"),
        ([3], "two positions"),
    ],
    ids=str,
)
def test_pairs_that_are_none_are_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        RandomHorizontalFlip(flip_pairs=pairs)


def test_pairs_beyond_the_points_and_a_wrong_probability_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 3\); the target has 3 points"):
        RandomHorizontalFlip(p=1, flip_pairs=[(1, 3)])(*draw())
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="not a probability"):
            RandomVerticalFlip(p=p)


def test_the_probability_is_obeyed_and_the_draw_does_not_depend_on_the_sample():
    flip = RandomHorizontalFlip(p=0.3, flip_pairs=PAIRS)
    torch.manual_seed(0)
    image, target = draw()
    assert 50 < sum(flip(image, target)[0] is not image for _ in range(250)) < 100
    seeded(5, flip, image, target)
    state_after = torch.get_rng_state()
    seeded(5, flip, draw(objects=())[0])
    assert torch.equal(torch.get_rng_state(), state_after)


def test_a_flip_draws_and_moves_pixels_and_masks_as_torchvisions_does():
    image, target = draw()
    masks = {"masks": tv_tensors.Mask(torch.arange(2 * 110 * 150).reshape(2, 110, 150))}
    for ours, theirs in (
        (RandomHorizontalFlip(p=0.5), v2.RandomHorizontalFlip(p=0.5)),
        (RandomVerticalFlip(p=0.5), v2.RandomVerticalFlip(p=0.5)),
    ):
        for seed in range(8):
            plain_target = {"boxes": target["boxes"], **masks}
            flipped, flipped_target = seeded(seed, ours, image, plain_target)
            expected, expected_target = seeded(seed, theirs, image, plain_target)
            assert torch.equal(flipped, expected)
            assert torch.equal(flipped_target["boxes"], expected_target["boxes"])
            assert torch.equal(flipped_target["masks"], expected_target["masks"])


def test_an_image_alone_a_pil_image_a_tuple_and_further_elements_pass():
    image, target = draw()
    flip = RandomHorizontalFlip(p=1, flip_pairs=PAIRS)
    assert torch.equal(flip(image), image.flip(-1))
    assert torch.equal(flip((image, target))[0], image.flip(-1))
    *_, extra = flip(image, target, "more")
    assert extra == "more"
    drawn = PIL.Image.new("RGB", (150, 110))
    drawn.putpixel((0, 0), (255, 0, 0))
    flipped, moved = flip(drawn, target)
    assert flipped.getpixel((149, 0)) == (255, 0, 0)
    assert moved["keypoints"][0, 1, 0] == pytest.approx(150 - 24.3)


def test_flips_pickle_and_show_their_arguments():
    for flip in FLIPS:
        unpickled = pickle.loads(pickle.dumps(flip(p=1, flip_pairs=PAIRS)))
        assert repr(unpickled) == repr(flip(p=1, flip_pairs=PAIRS))
        assert "p=1, flip_pairs=((0, 1),)" in repr(unpickled)
        assert torch.equal(unpickled(*draw())[0], flip(p=1, flip_pairs=PAIRS)(*draw())[0])
