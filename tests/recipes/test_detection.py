"""Detection with a small model: what it accepts, that it learns, and what it reports."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import AdamW
from torchvision import tv_tensors

from lit_loader.collate import DetectionCollate
from lit_loader.recipes import DetectionTask, PyramidBackbone, WarmupCosineLR, fcos_small
from lit_loader.recipes.detection import plain_targets, training_targets

NAMES = ("disc", "square")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers")
    # Lightning 2.6.6 over torch 2.15
]


def module(class_names: Any = NAMES, masks: bool = False, **changes: Any) -> DetectionTask:
    torch.manual_seed(0)
    training = {name: changes.pop(name) for name in ("optimizer", "scheduler") if name in changes}
    builder = partial(fcos_small, **{"channels": 16, "head_channels": 32, "min_size": 64} | changes)
    return DetectionTask(builder, class_names=class_names, masks=masks, **training)


def batch(num_images: int = 2) -> tuple[list[Tensor], list[dict[str, Any]]]:
    images = [torch.full((3, 64, 64), 0.2) for _ in range(num_images)]
    targets = []
    for number, image in enumerate(images):
        image[:, 16:40, 20:44] = 0.9
        label = 1 + number % 2
        boxes = torch.tensor([[20.0, 16.0, 44.0, 40.0]])
        targets.append({"boxes": boxes, "labels": torch.tensor([label]), "is_duplicate": False})
    return images, targets


def empty_target() -> dict[str, Any]:
    return {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "is_duplicate": False}


def fit(model: DetectionTask, batches: list[Any], tmp_path: Any, **changes: Any) -> Trainer:
    trainer = Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": tmp_path,
        }
        | changes
    )
    loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=0)
    trainer.fit(model, loader, loader)
    trainer.test(model, loader, verbose=False)
    return trainer


def test_steps_on_one_batch_bring_the_loss_down() -> None:
    model = module().train()
    images, targets = batch()
    optimizer = AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(12):
        loss = torch.stack(list(model.model(images, training_targets(plain_targets(targets))).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_fit_and_test_report_every_class_by_name(tmp_path: Any) -> None:
    model = module(optimizer=partial(AdamW, lr=1e-2), scheduler=partial(WarmupCosineLR, warmup_steps=2))
    fit(model, [batch()] * 4, tmp_path)
    assert model.test_scores is not None
    assert set(model.test_scores.ap_50) == set(NAMES)
    assert 0 <= model.test_scores.map <= model.test_scores.map_50 <= 1
    sections = dict(model.test_report())
    assert sections["test"] == {"mAP@50": model.test_scores.map_50, "mAP": model.test_scores.map}
    assert set(sections["AP@50"]) == set(NAMES)


def test_the_checkpoint_is_chosen_by_a_metric_that_validation_logs(tmp_path: Any) -> None:
    model = module()
    trainer = fit(model, [batch()], tmp_path)
    assert model.val_scores is not None
    assert model.monitor_mode == "max"
    assert model.monitor.split("/")[1] in {name.split("/")[1] for name in trainer.callback_metrics}


def test_a_report_before_a_test_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"trainer\.test"):
        module().test_report()


def test_images_without_boxes_train_and_score(tmp_path: Any) -> None:
    images, targets = batch()
    model = module()
    trainer = fit(model, [(images, [targets[0], empty_target()]), (images, [empty_target()] * 2)], tmp_path)
    assert math.isfinite(float(trainer.callback_metrics["test/map"]))
    assert model.test_scores is not None
    assert math.isnan(model.test_scores.ap_50["square"])


def test_tv_tensors_and_a_stacked_batch_give_the_same_detections() -> None:
    images, _ = batch()
    model = module(score_thresh=0.0).eval()
    with torch.no_grad():
        plain = model(images)
        wrapped = model([tv_tensors.Image(image) for image in images])
        stacked = model(torch.stack(images))
    for other in (wrapped, stacked):
        for a, b in zip(plain, other, strict=True):
            assert type(b["boxes"]) is Tensor
            torch.testing.assert_close(a, b)


def test_uint8_images_are_scaled_to_the_unit_range() -> None:
    images = [torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)]
    model = module(score_thresh=0.0).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images), model([image.float() / 255 for image in images]))


def test_detected_labels_count_from_one() -> None:
    images, _ = batch()
    model = module(score_thresh=0.0).eval()
    with torch.no_grad():
        labels = torch.cat([found["labels"] for found in model(images)])
    assert set(labels.tolist()) == {1, 2}


def test_boxes_that_overlap_more_than_asked_are_merged() -> None:
    images, _ = batch(1)
    found = []
    for nms_thresh in (0.1, 1.0):
        model = module(score_thresh=0.0, nms_thresh=nms_thresh).eval()
        with torch.no_grad():
            model.model.head.regression_head.bbox_reg.bias.fill_(2.0)  # boxes of four strides
            found.append(len(model(images)[0]["boxes"]))
    assert found[0] < found[1]


def test_detections_are_cut_at_the_asked_number_and_score() -> None:
    images, _ = batch(1)
    with torch.no_grad():
        assert len(module(score_thresh=0.0, detections_per_img=3).eval()(images)[0]["boxes"]) == 3
        assert len(module(score_thresh=0.99).eval()(images)[0]["boxes"]) == 0


def test_images_are_resized_to_the_asked_sides_and_boxes_are_given_back_in_pixels_of_the_input() -> None:
    seen: list[tuple[int, ...]] = []
    model = module(min_size=32, max_size=64, score_thresh=0.0).eval()
    model.model.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[-2:])))
    with torch.no_grad():
        boxes = model([torch.rand(3, 128, 256)])[0]["boxes"]
        model([torch.rand(3, 128, 512)])
    assert seen == [(32, 64), (32, 64)]
    assert float(boxes.max()) > 64


def test_crowd_regions_reach_neither_the_loss_nor_the_scores() -> None:
    images, targets = batch(1)
    crowd = {
        "boxes": torch.cat([targets[0]["boxes"], torch.tensor([[0.0, 0.0, 60.0, 60.0]])]),
        "labels": torch.tensor([1, 2]),
        "iscrowd": torch.tensor([0, 1]),
        "is_duplicate": False,
    }
    model = module(score_thresh=0.0)
    model.log_dict = lambda *_, **__: None  # type: ignore[method-assign] # there is no trainer
    assert model.training_step((images, [crowd]), 0) == model.training_step((images, targets), 0)
    model.eval()
    with torch.no_grad():
        model.validation_step((images, [crowd]), 0)
    assert math.isnan(model._score("val", model.val_metric).ap_50["square"])


@pytest.mark.parametrize("label", [0, 3])
def test_a_label_outside_the_class_names_is_refused(label: int) -> None:
    images, targets = batch(1)
    with pytest.raises(ValueError, match=r"must be in 1 to 2"):
        module().training_step((images, [{**targets[0], "labels": torch.tensor([label])}]), 0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"class_names": ()}, "class_names"),
        ({"class_names": ("a", "a")}, "class_names"),
        ({"head_channels": 48}, "multiple of 32"),
        ({"channels": 12}, "multiple of 8"),
        ({"strides": (8, 32)}, "run of neighbours"),
        ({"strides": ()}, "run of neighbours"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        module(**changes)


def test_a_checkpoint_restores_the_module_from_plain_values(tmp_path: Any) -> None:
    model = module(strides=(4, 8))
    trainer = fit(model, [batch()], tmp_path)
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    torch.load(tmp_path / "m.ckpt", weights_only=True)
    builder = partial(fcos_small, channels=16, head_channels=32, strides=(4, 8))
    again = DetectionTask.load_from_checkpoint(tmp_path / "m.ckpt", model=builder, weights_only=True)
    assert again.class_names == NAMES
    torch.testing.assert_close(again.model.state_dict(), model.model.state_dict())


@pytest.mark.parametrize("strides", [(4,), (8,), (8, 16), (8, 16, 32)])
def test_the_pyramid_gives_the_strides_it_was_asked_for(strides: tuple[int, ...]) -> None:
    maps = PyramidBackbone(channels=16, out_channels=32, strides=strides)(torch.rand(1, 3, 64, 96))
    assert {name: tuple(m.shape) for name, m in maps.items()} == {str(s): (1, 32, 64 // s, 96 // s) for s in strides}


@pytest.mark.parametrize("mode", ["list", "stack", "pad"])
def test_every_mode_of_collation_trains_tests_and_predicts_the_same(mode: Any) -> None:
    images, targets = batch()
    collate = DetectionCollate(images=mode, **({"size_divisor": 96, "pad_value": 0.7} if mode == "pad" else {}))
    given: Any = collate(list(zip(images, targets, strict=True)))
    plain = (images, targets)
    model = module(score_thresh=0.0)
    model.log_dict = lambda *_, **__: None  # type: ignore[method-assign] # there is no trainer
    torch.testing.assert_close(model.training_step(given, 0), model.training_step(plain, 0))
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model.predict_step(given, 0), model.predict_step(plain, 0))
        for step, score in ((model.validation_step, "val"), (model.test_step, "test")):
            scores = []
            for one in (given, plain):
                step(one, 0)
                scores.append(model._score(score, getattr(model, f"{score}_metric")))
            assert repr(scores[0]) == repr(scores[1])  # NaN where there are no boxes of a size


def test_targets_in_columns_are_refused() -> None:
    images, _ = batch()
    with pytest.raises(TypeError, match="one dict per image"):
        module().training_step((images, {"boxes": torch.zeros(2, 1, 4), "labels": torch.ones(2, 1)}), 0)


def test_labels_without_a_name_are_refused_before_the_transfer() -> None:
    images, targets = batch()
    task = module()
    task.check_batch((images, targets))
    wrong = [target | {"labels": torch.full_like(target["labels"], 99)} for target in targets]
    with pytest.raises(ValueError, match="labels 99 to 99 must be in 1 to"):
        task.check_batch((images, wrong))
    task.check_batch({"images": images})  # a batch transform may read it


def test_a_step_reads_no_labels_that_a_loader_has_checked(monkeypatch: Any) -> None:
    task = module()
    monkeypatch.setattr(task, "must_check", lambda values: False)
    monkeypatch.setattr("lit_loader.recipes.detection.check_labels", lambda *_, **__: pytest.fail("checked"))
    task.read_targets(batch())
