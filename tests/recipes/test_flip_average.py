"""Averages with the mirrored image: points are exchanged, probabilities averaged, in tests and predictions only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lit_loader.errors import SettingError
from lit_loader.recipes import ClassificationTask, LandmarkTask
from lit_loader.recipes.flip_average import average_answers, average_logits
from tests.support.batch_fields import with_fields
from tests.support.drawn_batches import CLASSES, FINISH, classification_batch, landmark_batch
from tests.support.toy_task import trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

NAMES = ("left", "right", "middle")
PAIRS = [[0, 1]]


class Brightest(nn.Module):
    """Points at red light in the left half, red light in the right half, and blue light, moved by ``bias``.

    Without a bias, points are equivariant. Class and attribute depend on the light in the left half.
    """

    def __init__(self, bias: float = 0.0, *, heatmaps: bool = False, **counts: Any) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(bias))
        self.heatmaps = heatmaps

    def forward(self, images: Tensor) -> dict[str, Any]:
        # Images are normalised, and their background is black.
        light = images - images.amin(dim=(-2, -1), keepdim=True)
        width = light.shape[-1]
        is_left = torch.arange(width) < width // 2
        logits = torch.stack([light[..., is_left].mean(dim=(1, 2, 3)), light.mean(dim=(1, 2, 3))], dim=1)
        light = torch.stack([light[:, 0] * is_left, light[:, 0] * ~is_left, light[:, 2]], dim=1)
        labels = {"class_logits": logits, "attribute_logits": {"finish": 3 * logits}}
        if self.heatmaps:
            return {"heatmaps": 20 * light + self.shift * torch.arange(width), **labels}
        shares = light / light.sum(dim=(-2, -1), keepdim=True)
        centres = [(torch.arange(side) + 0.5) / side for side in light.shape[-2:]]
        x = (shares.sum(dim=-2) * centres[1]).sum(dim=-1) + self.shift
        y = (shares.sum(dim=-1) * centres[0]).sum(dim=-1)
        return {"points": torch.stack([x, y], dim=-1), **labels}


def lights() -> Tensor:
    """Draw a red light on the left, another on the right, and a blue one."""
    images = torch.zeros(2, 3, 32, 48)
    for row, (y, x) in enumerate([(4, 6), (10, 2)]):
        images[row, 0, y : y + 5, x : x + 7] = 1.0
        images[row, 0, y + 3 : y + 7, x + 28 : x + 34] = 1.0
        images[row, 2, 20:24, 18:28] = 1.0
    return images


def landmarks(bias: float = 0.0, *, heatmaps: bool = False, **settings: Any) -> LandmarkTask:
    builder: Any = lambda **counts: Brightest(bias, heatmaps=heatmaps, **counts)  # noqa: E731
    arguments = {"class_names": CLASSES, "attributes": {"finish": FINISH}, "flip_pairs": PAIRS, "test_time_flip": True}
    return LandmarkTask(builder, keypoint_names=NAMES, **arguments | settings).eval()


@torch.no_grad()
@pytest.mark.parametrize("heatmaps", [False, True])
def test_equivariant_points_are_unchanged_and_biased_ones_are_centred(heatmaps: bool) -> None:
    images = lights()
    exact = landmarks(heatmaps=heatmaps)
    mirrored = exact(images.flip(-1))["keypoints"][:, [1, 0, 2]]
    points = exact(images)["keypoints"]
    torch.testing.assert_close(torch.stack([48 - mirrored[..., 0], mirrored[..., 1]], dim=-1), points)
    torch.testing.assert_close(exact.predict(images)["keypoints"], points, atol=1e-4, rtol=0)
    biased = landmarks(0.1, heatmaps=heatmaps)
    assert float((biased(images)["keypoints"] - points).abs().max()) > 0.5
    torch.testing.assert_close(biased.predict(images)["keypoints"], points, atol=1e-3, rtol=0)
    assert ("scores" in biased.predict(images)) == heatmaps


@torch.no_grad()
def test_points_without_a_pair_are_not_exchanged() -> None:
    images = lights()
    predictions = [landmarks(flip_pairs=pairs).predict(images)["keypoints"] for pairs in (PAIRS, [])]
    torch.testing.assert_close(predictions[0][:, 2], predictions[1][:, 2])
    assert float((predictions[0][:, :2] - predictions[1][:, :2]).abs().max()) > 0.5


@torch.no_grad()
def test_labels_of_crops_have_the_mean_probability() -> None:
    model = landmarks()
    images = lights()
    images[..., :24] *= 0.5
    first = model(images)
    second = model(images.flip(-1))
    average = model.predict(images)
    for read in (lambda outputs: outputs["class_logits"], lambda outputs: outputs["attribute_logits"]["finish"]):
        expected = (read(first).softmax(dim=1) + read(second).softmax(dim=1)) / 2
        torch.testing.assert_close(read(average).softmax(dim=1), expected)
        assert not torch.equal(read(first), read(second))


def test_probabilities_are_averaged_without_overflow() -> None:
    first = torch.tensor([[2.0, -1.0, 0.0], [200.0, -200.0, 0.0]])
    second = torch.tensor([[-1.0, 0.5, 0.0], [200.0, -200.0, 0.0]])
    mean = (first.softmax(dim=1) + second.softmax(dim=1)) / 2
    torch.testing.assert_close(average_logits(first, second).softmax(dim=1), mean)
    mean = (first.sigmoid() + second.sigmoid()) / 2
    torch.testing.assert_close(average_answers(first, second).sigmoid(), mean)
    # The same logits, also where a sigmoid is rounded to 1.
    torch.testing.assert_close(average_answers(first, first), first)
    torch.testing.assert_close(average_logits(first, first), first.log_softmax(dim=1), atol=1e-6, rtol=1e-6)


class LeftLight(nn.Module):
    """One logit for light on the left, one for all light."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, images: Tensor) -> Tensor:
        left_light = images[..., : images.shape[-1] // 2].mean(dim=(1, 2, 3))
        return self.scale * torch.stack([left_light, images.mean(dim=(1, 2, 3))], dim=1)


@torch.no_grad()
@pytest.mark.parametrize("multi_label", [False, True])
def test_predicted_classes_are_those_of_image_and_mirror_image(multi_label: bool) -> None:
    batch = classification_batch(4)
    plain, averaged = (
        ClassificationTask(LeftLight, class_names=CLASSES, multi_label=multi_label, test_time_flip=flip).eval()
        for flip in (False, True)
    )
    mirrored = plain.predict_step(classification_batch_of(batch.images.flip(-1)), 0)
    expected = (plain.predict_step(batch, 0) + mirrored) / 2
    torch.testing.assert_close(averaged.predict_step(batch, 0), expected)
    assert not torch.equal(expected, mirrored)


def classification_batch_of(images: Tensor) -> Any:
    batch = classification_batch(len(images))
    batch.images = images
    return batch


def test_tests_are_averaged_and_validations_are_not(tmp_path: Any) -> None:
    batch = landmark_batch(2)
    batch = with_fields(
        batch, images=lights(), keypoints=torch.full((2, 3, 2), 20.0), mask=torch.ones(2, 3, dtype=torch.bool)
    )
    running = trainer(tmp_path)
    errors = {}
    for flip in (False, True):
        model = landmarks(0.2, test_time_flip=flip)
        loader = DataLoader([batch], batch_size=None)
        running.validate(model, loader, verbose=False)
        running.test(model, loader, verbose=False)
        errors[flip] = (model.val_scores.nme, model.test_scores.nme)
    assert errors[False][0] == errors[False][1] == errors[True][0]
    assert errors[True][1] != errors[True][0]


def test_flips_without_known_pairs_are_refused() -> None:
    with pytest.raises(SettingError, match=r"test_time_flip=True .* flip_pairs=\[\] if every point keeps its name"):
        landmarks(flip_pairs=None)
    with pytest.raises(ValueError, match=r"flip_pairs contains \(0, 3\); keypoint_names has 3 points"):
        landmarks(flip_pairs=[[0, 3]], test_time_flip=False)
    assert landmarks(flip_pairs=None, test_time_flip=False)
