"""Classes that an image does not label are neither trained nor scored on it."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection import FasterRCNN, MaskRCNN, roi_heads
from torchvision.ops import sigmoid_focal_loss

from lit_loader import DetectionDataModule, MultiTaskDataModule
from lit_loader.datasets import ShapesSource, TableSource
from lit_loader.errors import LitLoaderError
from lit_loader.recipes import AveragePrecision, DetectionTask, model_kwargs_from_datamodule
from lit_loader.recipes.unlabelled import drop_unlabelled, training_losses
from tests.support.drawn_batches import CLASSES, detection_batch, multi_task_batch, overfit
from tests.support.small_detectors import OwnDetector, faster_rcnn, fcos, mask_rcnn, retinanet, ssd, ssdlite
from tests.support.small_tasks import small_task
from tests.support.toy_task import trainer

DARK = torch.tensor([1])
BRIGHT = torch.tensor([2])
NAMES = {"class_names": CLASSES}

SIGMOID = [fcos, retinanet]
DETECTORS = [*SIGMOID, ssdlite, ssd, faster_rcnn, mask_rcnn]
every_detector = pytest.mark.parametrize("build", DETECTORS)


def detector(build: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = build(num_classes=3).train()
    for module in model.modules():  # batch statistics would differ between batches
        if isinstance(module, nn.BatchNorm2d | nn.Dropout):
            module.eval()
    return model


def dark_batch(model: nn.Module, count: int = 2) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return images and targets whose objects are all dark."""
    images, targets = detection_batch(count, masks=isinstance(model, MaskRCNN))
    fields = [{name: values for name, values in target.items() if name != "is_duplicate"} for target in targets]
    return images, [target | {"labels": torch.ones_like(target["labels"])} for target in fields]


def losses_of(model: nn.Module, *, unlabelled: list[Tensor | None], **settings: Any) -> dict[str, Tensor]:
    """Return the losses of dark images, each with its unlabelled classes, with the same draws at every call."""
    images, targets = dark_batch(model, len(unlabelled))
    fields = [{} if labels is None else {"unlabelled": labels} for labels in unlabelled]
    torch.manual_seed(1)
    marked = [target | more for target, more in zip(targets, fields, strict=True)]
    return training_losses(model, images, marked, **NAMES | settings)


def class_gradients(model: nn.Module) -> Tensor:
    """Return the gradient of the last layer of the classes' scores, a row for each class, background included."""
    if isinstance(model, FasterRCNN):
        layers = [model.roi_heads.box_predictor.cls_score]
    else:
        head: Any = model.head.classification_head  # type: ignore[union-attr]
        layers = [head.cls_logits] if hasattr(head, "cls_logits") else list(head.module_list)
        layers = [layer[-1] if isinstance(layer, nn.Sequential) else layer for layer in layers]
    # Channels of a convolution are classes within anchors.
    parts = [p.grad.reshape(-1, 3, p.grad[0].numel()) for layer in layers for p in layer.parameters()]
    return torch.cat([part.transpose(0, 1).flatten(1) for part in parts], dim=1)


def gradients(model: nn.Module, *, unlabelled: list[Tensor | None], **settings: Any) -> Tensor:
    model.zero_grad()
    sum(losses_of(model, unlabelled=unlabelled, **settings).values()).backward()  # type: ignore[union-attr]
    return class_gradients(model)


@every_detector
def test_score_of_a_class_has_no_gradient_on_images_that_do_not_label_it(build: Any) -> None:
    model = detector(build)
    ordinary = gradients(model, unlabelled=[None, None])
    masked = gradients(model, unlabelled=[BRIGHT, BRIGHT])
    assert ordinary[2].any()
    assert not masked[2].any()
    assert masked[1].any()


@pytest.mark.parametrize("build", SIGMOID)
def test_gradients_of_other_classes_are_the_ordinary_ones_with_sigmoids(build: Any) -> None:
    model = detector(build)
    ordinary = gradients(model, unlabelled=[None, None])
    masked = gradients(model, unlabelled=[BRIGHT, BRIGHT])
    assert torch.equal(masked[:2], ordinary[:2])


def logits_of(model: Any, *, unlabelled: list[Tensor | None], monkeypatch: Any) -> tuple[Tensor, Tensor]:
    """Return the logits of a head, and the logits that its loss gets."""
    heads: list[Tensor] = []
    losses: list[Tensor] = []
    if isinstance(model, FasterRCNN):
        layer = model.roi_heads.box_predictor
        loss = roi_heads.fastrcnn_loss
        monkeypatch.setattr(roi_heads, "fastrcnn_loss", lambda *values: losses.append(values[0]) or loss(*values))
    else:
        layer = model.head.classification_head
        model.head.register_forward_hook(lambda *values: losses.append(values[-1]["cls_logits"]))
    # Registered first, so that it is called before a hook that fills logits.
    layer.register_forward_hook(lambda *values: heads.append(values[-1]))
    losses_of(model, unlabelled=unlabelled)
    output = heads[0]
    return output if isinstance(output, Tensor) else output[0], losses[0]


@every_detector
def test_logits_of_other_images_and_classes_are_the_same_bit_for_bit(build: Any, monkeypatch: Any) -> None:
    model = detector(build)
    raw, filled = logits_of(model, unlabelled=[None, BRIGHT], monkeypatch=monkeypatch)
    # Proposals of all images are in one axis; each image has its objects among them.
    is_filled = filled[..., 2] == -1e4
    assert torch.equal(filled[..., :2], raw[..., :2])
    assert torch.equal(filled[..., 2][~is_filled], raw[..., 2][~is_filled])
    if raw.ndim == 3:
        assert is_filled[1].all()
        assert not is_filled[0].any()
    else:
        assert is_filled.tolist() == sorted(is_filled.tolist())
        assert 0 < is_filled.sum() < len(is_filled)


@every_detector
def test_losses_of_images_that_label_all_classes_are_the_same_bit_for_bit(build: Any) -> None:
    model = detector(build)
    plain = losses_of(model, unlabelled=[None, None])
    losses_of(model, unlabelled=[BRIGHT, BRIGHT])
    # Without a class in it, the field makes the hooks run.
    for unlabelled in ([None, None], [torch.zeros(0, dtype=torch.int64)] * 2):
        losses = losses_of(model, unlabelled=unlabelled)
        assert all(torch.equal(losses[name], plain[name]) for name in plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_filled_logit_adds_nothing_to_a_loss(dtype: torch.dtype) -> None:
    logits = torch.randn(5, 3, dtype=dtype)
    filled = torch.cat([logits, torch.full((5, 1), -1e4, dtype=dtype)], dim=1)
    labels = torch.tensor([0, 1, 2, 0, 1])
    answers = functional.one_hot(labels, 4).to(dtype)
    losses = sigmoid_focal_loss(filled, answers)
    assert torch.equal(losses[:, :3], sigmoid_focal_loss(logits, answers[:, :3]))
    assert not losses[:, 3].any()
    softmax = [functional.cross_entropy(values.float(), labels) for values in (logits, filled)]
    torch.testing.assert_close(*softmax)


def test_classification_loss_is_that_of_a_model_without_the_class() -> None:
    """A column less: the loss of RetinaNet is a sum over classes, over the number of matched anchors."""
    model = detector(retinanet)
    plain = losses_of(model, unlabelled=[None, None])["classification"]
    masked = losses_of(model, unlabelled=[BRIGHT, BRIGHT])["classification"]
    model.head.classification_head.register_forward_hook(  # type: ignore[union-attr]
        lambda module, inputs, logits: torch.cat([logits[..., :2], torch.full_like(logits[..., 2:], -1e4)], dim=-1)
    )
    assert torch.equal(masked, losses_of(model, unlabelled=[None, None])["classification"])
    assert masked < plain


@every_detector
def test_model_keeps_no_hooks_and_can_be_copied_and_pickled(build: Any) -> None:
    model = detector(build)
    names = set(model.state_dict())
    losses_of(model, unlabelled=[BRIGHT, None])
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "unlabelled": BRIGHT}
    with pytest.raises(RuntimeError, match="must match the size"):
        training_losses(model, [torch.zeros(5, 8, 8)], [target], **NAMES)
    # A hook that is left would be a local function, which cannot be pickled.
    assert set(model.state_dict()) == names
    assert set(pickle.loads(pickle.dumps(copy.deepcopy(model))).state_dict()) == names


def test_batch_without_the_field_registers_no_hook(monkeypatch: Any) -> None:
    model = detector(fcos)
    head: Any = model.head.classification_head  # type: ignore[union-attr]
    monkeypatch.setattr(head, "register_forward_hook", lambda *_: pytest.fail("registered"))
    losses_of(model, unlabelled=[None, None])


# -- tasks -------------------------------------------------------------------------------------------------


def marked(batch: Any, unlabelled: dict[int, Tensor]) -> Any:
    """Return a batch some of whose images, by position, do not label some classes."""
    if hasattr(batch, "target_list"):
        rows = [unlabelled.get(i, torch.zeros(0, dtype=torch.int64)) for i in range(len(batch.images))]
        fields = dict(zip(type(batch).__annotations__, batch, strict=True))
        fields["unlabelled"] = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        return type(batch)(**fields)
    images, targets = batch
    fields = [{"unlabelled": unlabelled[i]} if i in unlabelled else {} for i in range(len(images))]
    return images, [target | field for target, field in zip(targets, fields, strict=True)]


BATCHES = {"detection": detection_batch, "multi_task": multi_task_batch}
both_tasks = pytest.mark.parametrize("kind", BATCHES)


def quiet_task(kind: str, **settings: Any) -> Any:
    model = small_task(kind, {"score_thresh": 0.0}, **settings)
    model.log_dict = lambda *_, **__: None
    return model.train()


@both_tasks
def test_task_does_not_train_the_score_of_an_unlabelled_class(kind: str) -> None:
    model = quiet_task(kind)
    network = model.model if kind == "detection" else model.model.detector
    for labels, is_trained in ((DARK, (True, False, True)), (torch.tensor([1, 2]), (False, False, False))):
        model.zero_grad()
        batch = marked(BATCHES[kind](4), dict.fromkeys(range(4), labels))
        model.training_step(batch, 0).backward()
        rows = class_gradients(network)
        # The background of FCOS has an output, which the focal loss trains as absent.
        assert [bool(row.any()) for row in rows[1:]] == list(is_trained[1:] if labels is not DARK else (False, True))


@both_tasks
def test_objects_of_an_unlabelled_class_are_left_out_of_training(kind: str) -> None:
    labels = BATCHES[kind](4)[1] if kind == "detection" else None
    if labels is None:
        batch = multi_task_batch(4)
        is_bright = (batch.labels[:, 0] == 2).nonzero().flatten().tolist()
        without = multi_task_batch(4, empty=is_bright)
    else:
        batch = detection_batch(4)
        is_bright = [i for i, target in enumerate(labels) if int(target["labels"]) == 2]
        empty = [target | {"boxes": target["boxes"][:0], "labels": target["labels"][:0]} for target in batch[1]]
        without = (batch[0], [empty[i] if i in is_bright else target for i, target in enumerate(batch[1])])
    assert 0 < len(is_bright) < 4
    losses = []
    for values in (batch, without):
        torch.manual_seed(3)
        losses.append(quiet_task(kind).training_step(marked(values, dict.fromkeys(is_bright, BRIGHT)), 0))
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)


def labelled_rows(fields: dict[str, Any], unlabelled: Any) -> dict[str, Tensor]:
    rows = [row for row, label in enumerate(fields["labels"].tolist()) if label not in unlabelled]
    return {name: values[rows] for name, values in fields.items() if isinstance(values, Tensor)}


def test_detections_and_objects_of_an_unlabelled_class_do_not_count() -> None:
    images, targets = detection_batch(6)
    model = quiet_task("detection").eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bbox_reg.bias"):  # boxes as large as objects, so that some match
            nn.init.constant_(parameter, 2.0)
    unlabelled = {0: BRIGHT, 1: DARK, 2: torch.tensor([1, 2])}
    with torch.no_grad():
        model.test_step(marked((images, targets), unlabelled), 0)
        detections = model(images)
    expected = AveragePrecision(CLASSES)
    for i, (detected, target) in enumerate(zip(detections, targets, strict=True)):
        expected.update(
            [labelled_rows(detected, unlabelled.get(i, ()))], [labelled_rows(target, unlabelled.get(i, ()))]
        )
    assert repr(model.test_metric.metric.compute_scores()) == repr(expected.compute_scores())
    plain = AveragePrecision(CLASSES)
    plain.update(detections, targets)
    assert plain.compute_scores().map != expected.compute_scores().map


def test_multi_task_scores_count_no_object_of_an_unlabelled_class() -> None:
    batch = multi_task_batch(6)
    is_bright = (batch.labels[:, 0] == 2).nonzero().flatten().tolist()
    model = quiet_task("multi_task").eval()
    with torch.no_grad():
        model.test_step(marked(batch, dict.fromkeys(is_bright, BRIGHT)), 0)
    scores = model.test_metric.metric.compute_scores()
    assert scores.num_matched + scores.num_missed == 6 - len(is_bright)


@both_tasks
def test_label_of_an_unlabelled_class_without_a_name_is_refused(kind: str) -> None:
    batch = marked(BATCHES[kind](2), {1: torch.tensor([3])})
    with pytest.raises(ValueError, match="must be in 1 to 2"):
        quiet_task(kind).training_step(batch, 0)


def test_model_of_another_kind_is_refused_with_the_remedy() -> None:
    model = DetectionTask(OwnDetector, class_names=CLASSES)
    model.log_dict = lambda *_, **__: None  # type: ignore[method-assign]
    batch = detection_batch(2)
    assert float(model.training_step(batch, 0).detach()) == 3.0
    message = r"OwnDetector .* not label \['bright'\]; take .*fcos_small, or pass missing='absent'"
    with pytest.raises(LitLoaderError, match=message):
        model.training_step(marked(batch, {1: BRIGHT}), 0)


def test_head_that_is_not_called_is_refused() -> None:
    class Bypassing(type(detector(fcos))):  # type: ignore[misc]
        def forward(self, images: Any, targets: Any = None) -> dict[str, Tensor]:
            return {"loss": self.head.classification_head.cls_logits.weight.sum()}

    model = detector(fcos)
    model.__class__ = Bypassing
    with pytest.raises(RuntimeError, match="would be trained as absent"):
        losses_of(model, unlabelled=[BRIGHT])


def test_training_with_unlabelled_classes_learns_the_others() -> None:
    batch = detection_batch(4)
    bright = [i for i, target in enumerate(batch[1]) if int(target["labels"]) == 2]
    losses = overfit(small_task("detection"), marked(batch, dict.fromkeys(bright, DARK)), steps=12)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_model_leaves_unlabelled_classes_out() -> None:
    model = quiet_task("detection", compile={"backend": "eager"})
    model.setup("fit")
    batch = detection_batch(2)
    model.training_step(batch, 0)  # compiles the model without hooks
    model.zero_grad()
    model.training_step(marked(batch, {0: BRIGHT, 1: BRIGHT}), 1).backward()
    assert not class_gradients(model.model)[2].any()


class PartlyLabelled(TableSource):
    """Drawn shapes; the second validation set and all training images do not label stars."""

    def __init__(self, shapes: ShapesSource) -> None:
        self.shapes = shapes

    def prepare(self) -> None:
        self.shapes.prepare()

    def tables(self, stage: Any) -> list[Any]:
        (table,) = self.shapes.tables(stage)
        partly = table.with_unlabelled_classes(["star"])
        return [partly] if stage == "train" else [table, partly]


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*exists and is not empty")
@pytest.mark.parametrize("kind", BATCHES)
def test_data_module_with_unlabelled_classes_trains_and_is_scored(tmp_path: Any, kind: str) -> None:
    splits = {"train": 8, "val": 6, "test": 6}
    shapes = ShapesSource(num_images=splits, image_size=48, cache_dir=str(tmp_path), progress=False)
    settings: dict[str, Any] = {"batch_size": 4, "num_workers": 0, "seed": 0}
    module = DetectionDataModule if kind == "detection" else MultiTaskDataModule
    more = {} if kind == "detection" else {"attributes": ["finish"]}
    data = module(PartlyLabelled(shapes), **settings, **more)
    data.prepare_data()
    names = model_kwargs_from_datamodule(data)
    model = small_task(kind, {"score_thresh": 0.0}, **names)
    head: Any = (model.model if kind == "detection" else model.model.detector).head.classification_head
    weights = head.cls_logits.weight.detach().clone()
    # Without weight decay, which would change every weight.
    model.make_optimizer = partial(torch.optim.SGD, lr=0.01)
    model.make_scheduler = None
    trainer(tmp_path, max_epochs=1).fit(model, datamodule=data)
    star = 1 + names["class_names"].index("star")
    changed = (head.cls_logits.weight != weights).flatten(1).any(dim=1)
    assert [bool(changed[label]) for label in (1, 2, 3)] == [label != star for label in (1, 2, 3)]
    scores = [getattr(part, "detection", part) for part in model.val_set_scores.values()]
    assert not math.isnan(scores[0].ap_50["star"])
    assert math.isnan(scores[1].ap_50["star"])
    assert not math.isnan(scores[1].ap_50["disc"])


def test_rows_of_labelled_classes_keep_their_order() -> None:
    rows = {"labels": torch.tensor([3, 1, 2, 1]), "scores": torch.tensor([0.1, 0.2, 0.3, 0.4])}
    assert drop_unlabelled(rows, None) == rows
    assert drop_unlabelled(rows, torch.tensor([1, 5]))["scores"].tolist() == pytest.approx([0.1, 0.3])
