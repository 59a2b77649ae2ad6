"""Heatmaps on backbones of torchvision and timm: their maps, weights and trained parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import timm
import torch

from lit_loader.recipes import LandmarkTask, heatmap_model, heatmaps_small
from tests.support.drawn_batches import CLASSES, CORNERS, changed_by_fit, fit, landmark_batch, overfit
from tests.support.small_tasks import constant_builder

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")

BACKBONES = [
    "resnet18",
    "mobilenet_v3_small",
    "mnasnet0_5",
    "regnet_y_400mf",
    "shufflenet_v2_x0_5",
    "timm/test_convnext",
]
LARGE_BACKBONES = ["convnext_tiny", "densenet121", "efficientnet_b0", "swin_t", "swin_v2_t", "vgg11"]
TIMM = "timm/test_resnet"


def task(backbone: str = TIMM, **changes: Any) -> LandmarkTask:
    torch.manual_seed(0)
    return LandmarkTask(backbone, **{"keypoint_names": CORNERS} | changes)


@pytest.mark.parametrize(
    "backbone", [*BACKBONES, *(pytest.param(name, marks=pytest.mark.soak) for name in LARGE_BACKBONES)]
)
def test_heatmaps_have_stride_4_for_every_backbone_and_size(backbone: str) -> None:
    model = heatmap_model(num_keypoints=5, num_classes=2, backbone=backbone).eval()
    with torch.no_grad():
        outputs = model(torch.rand(2, 3, 50, 70))
    shapes = {name: tuple(value.shape) for name, value in outputs.items()}
    assert shapes == {"heatmaps": (2, 5, 13, 18), "class_logits": (2, 2)}
    assert (model.stride, model.backbone_stride) == (4, 32)


@pytest.mark.parametrize(
    ("backbone", "match"),
    [
        ("timm/test_vit", r"has no map before its classifier.*resnet50"),
        ("squeezenet1_1", r"has no map before its classifier.*\(1, 512, 3, 5\)"),
        ("maxvit_t", "has no map before its classifier"),
        ("resnet19", "did you mean resnet1"),
    ],
)
def test_backbone_without_a_map_is_refused(backbone: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        heatmap_model(num_keypoints=1, backbone=backbone)


@pytest.mark.parametrize("backbone", ["timm/test_convnext", "shufflenet_v2_x0_5"])
def test_every_trained_parameter_gets_a_gradient(backbone: str) -> None:
    model = task(backbone, class_names=CLASSES)
    model.log_dict = lambda *_, **__: None  # type: ignore[method-assign]
    model.training_step(landmark_batch(2), 0).backward()
    # DDP waits for the gradient of each trained parameter.
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert [name for name, parameter in trained.items() if parameter.grad is None] == []
    assert all(module.training for module in model.model.modules())


@pytest.mark.parametrize(("stride", "cell"), [(None, (48 / 16, 80 / 16)), (5, (5, 5))])
def test_points_are_at_the_centres_of_their_cells(stride: int | None, cell: tuple[float, float]) -> None:
    maps = torch.zeros(2, 1, 16, 16)
    maps[..., 3, 1] = 100.0  # a peak in row 3 and column 1
    model = LandmarkTask(constant_builder({"heatmaps": maps}, stride=stride), keypoint_names=["a"])
    points = model(torch.rand(2, 3, 80, 48))["keypoints"]
    assert points[0, 0].tolist() == pytest.approx([1.5 * cell[0], 3.5 * cell[1]])


@pytest.mark.parametrize("output", [torch.zeros(2, 4, 8, 8), {"out": 0}, {"heatmaps": torch.zeros(2, 3, 8, 8)}])
def test_model_that_returns_other_values_than_heatmaps_is_refused(output: Any) -> None:
    with pytest.raises(ValueError, match=r"heatmaps \(2, 4, 'h', 'w'\)"):
        LandmarkTask(constant_builder(output), keypoint_names=CORNERS)(torch.rand(2, 3, 64, 64))


def test_model_on_a_backbone_learns_drawn_squares() -> None:
    losses = overfit(task(class_names=CLASSES), landmark_batch(4), steps=12, learning_rate=3e-3)
    assert losses[-1] < 0.5 * losses[0]


def test_weights_of_the_backbone_come_from_a_file(tmp_path: Any) -> None:
    source = timm.create_model("test_resnet", num_classes=3)
    torch.save(source.state_dict(), tmp_path / "backbone.pth")
    model = task(weights=str(tmp_path / "backbone.pth"))
    source.reset_classifier(0)
    torch.testing.assert_close(model.model.backbone.state_dict(), source.state_dict(), rtol=0, atol=0)
    assert model.normalize.mean.flatten().tolist() == pytest.approx([0.5, 0.5, 0.5])


def test_checkpoint_for_other_points_is_loaded_except_into_the_heatmaps(tmp_path: Any) -> None:
    source = task()
    fit(source, [landmark_batch(2)], tmp_path).save_checkpoint(tmp_path / "m.ckpt")
    builder = partial(heatmap_model, backbone=TIMM, weights=None)
    model = LandmarkTask(builder, keypoint_names=["one"], weights=str(tmp_path / "m.ckpt"))
    assert torch.equal(model.model.refine[0][0].weight, source.model.refine[0][0].weight)
    assert model.model.heatmaps.weight.shape[0] == 1


def test_unknown_names_of_weights_and_models_are_refused() -> None:
    with pytest.raises(ValueError, match="'OLD' is neither a file nor one of IMAGENET1K_V1, DEFAULT"):
        task("resnet18", weights="OLD")
    with pytest.raises(FileNotFoundError, match="'DEFAULT' does not exist"):
        LandmarkTask(heatmaps_small, keypoint_names=CORNERS, weights="DEFAULT")
    with pytest.raises(ValueError, match="did you mean heatmaps_small"):
        task("heatmap_small")


def test_torchvision_backbone_is_fine_tuned_and_its_checkpoint_needs_only_its_name(tmp_path: Any) -> None:
    model = task(
        "resnet18",
        class_names=CLASSES,
        optimizer=partial(torch.optim.SGD, lr=1e-3),
        scheduler=None,
        lr_scales={"backbone.*": 0.1},
        freeze=["backbone.conv1.*", "backbone.bn1.*", "backbone.layer1.*"],
    )
    trainer, changed = changed_by_fit(model, [landmark_batch(2)], tmp_path)
    frozen = ("backbone.conv1.", "backbone.bn1.", "backbone.layer1.")
    assert not any(name.startswith(frozen) for name in changed)
    assert {"backbone.layer4.1.bn2.running_mean", "refine.0.0.weight", "heatmaps.weight"} <= changed
    rates = sorted({group["lr"] for group in trainer.optimizers[0].param_groups})
    assert rates == pytest.approx([1e-4, 1e-3])
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    restored = LandmarkTask.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True).eval()
    images = landmark_batch(2).images
    with torch.no_grad():
        torch.testing.assert_close(restored(images), model.eval()(images))
