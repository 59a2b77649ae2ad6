"""Curves of the metrics: areas are the reported scores, confusions add up to the objects, and crowds do not count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from faster_coco_eval import COCOeval_faster
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_average_precision,
    multiclass_confusion_matrix,
    multiclass_precision_recall_curve,
    multilabel_average_precision,
)
from torchvision.ops import box_iou

from lit_loader.recipes import AveragePrecision, ClassMetric, NormalizedMeanError
from lit_loader.recipes.curves import (
    MAX_CONFUSION_CLASSES,
    NUM_LOGIT_BINS,
    add_logits,
    class_curve,
    class_thresholds,
    threshold_counts,
)
from lit_loader.recipes.matching import add_confusions, detection_error

NAMES = ("disc", "square", "star")


def image(*rows: tuple[float, ...], labels: list[int], scores: list[float] | None = None) -> dict[str, Tensor]:
    fields = {"boxes": torch.tensor(rows).reshape(-1, 4), "labels": torch.tensor(labels, dtype=torch.int64)}
    return fields if scores is None else {**fields, "scores": torch.tensor(scores)}


def random_images(count: int = 12) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Return detections and targets; detections are moved objects, some of another class, and some are false."""
    generator = torch.Generator().manual_seed(0)
    detections = []
    targets = []
    for _ in range(count):
        corners = torch.rand(5, 2, generator=generator) * 200
        boxes = torch.cat([corners, corners + 40], dim=1)
        labels = torch.randint(1, 4, (5,), generator=generator)
        targets.append({"boxes": boxes, "labels": labels, "iscrowd": torch.zeros(5, dtype=torch.int64)})
        moved = boxes + torch.randn(5, 4, generator=generator) * 4
        false_boxes = boxes[:2] + 500
        is_other = torch.rand(7, generator=generator) < 0.2
        answers = torch.cat([labels, labels[:2]])
        detections.append(
            {
                "boxes": torch.cat([moved, false_boxes]),
                "labels": torch.where(is_other, answers % 3 + 1, answers),
                "scores": torch.rand(7, generator=generator),
            }
        )
    return detections, targets


@pytest.mark.parametrize("masks", [False, True])
def test_area_of_detection_curves_is_the_reported_average_precision(masks: bool) -> None:
    metric = AveragePrecision((*NAMES, "never"), masks=masks)
    detections, targets = random_images(4)
    if masks:
        for fields in (*detections, *targets):
            fields["masks"] = torch.zeros(len(fields["labels"]), 60, 60, dtype=torch.bool)
            for row, (x, y, *_) in enumerate((fields["boxes"] / 10).long().clamp(0, 50).tolist()):
                fields["masks"][row, y : y + 5, x : x + 4] = True
    metric.update(detections, targets)
    scores = metric.compute_scores()
    curves = {part.label: part for part in metric.compute_curves()}
    assert list(curves) == (["boxes", "masks"] if masks else ["boxes"])
    for label, values in [("boxes", scores), ("masks", scores.masks)][: len(curves)]:
        at_50, mean = curves[label].precision_recall
        assert (at_50.name, mean.name) == ("IoU 0.50", "IoU 0.50:0.95")
        assert at_50.average_precision.tolist() == pytest.approx(list(values.ap_50.values()), nan_ok=True)
        assert mean.average_precision.tolist() == pytest.approx(list(values.ap.values()), nan_ok=True)
        assert at_50.precision[:3].mean(axis=1).tolist() == pytest.approx(at_50.average_precision[:3].tolist())
        assert np.isnan(at_50.precision[3]).all()


def test_average_precision_is_computed_once_for_scores_and_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    evaluate = COCOeval_faster.evaluate
    monkeypatch.setattr(COCOeval_faster, "evaluate", lambda self: (calls.append(None), evaluate(self)))
    metric = AveragePrecision(NAMES)
    metric.update(*random_images(2))
    metric.compute_scores()
    metric.compute_curves()
    assert len(calls) == 1


def test_detection_confusions_add_up_to_the_objects_and_the_detections() -> None:
    detections, targets = random_images()
    metric = AveragePrecision(NAMES)
    metric.record_curves(min_score=0.3, min_iou=0.5)
    metric.update(detections, targets)
    (curves,) = metric.compute_curves()
    assert curves.confusion is not None
    counts = curves.confusion.counts
    objects = torch.cat([target["labels"] for target in targets]).bincount(minlength=4)[1:]
    assert counts[:3].sum(axis=1).tolist() == objects.tolist() == curves.support.tolist()
    answers = torch.cat([fields["labels"][fields["scores"] >= 0.3] for fields in detections]).bincount(minlength=4)
    assert counts[:, :3].sum(axis=0).tolist() == answers[1:].tolist()
    assert counts[3, 3] == 0
    # Both kinds of mistakes occur, so that the sums are not only of the diagonal.
    assert counts[:3, 3].sum() > 0
    assert np.triu(counts[:3, :3], 1).sum() > 0


def test_counts_by_threshold_are_those_of_detections_at_or_above_each_score() -> None:
    detections, targets = random_images()
    for number, fields in enumerate(detections):
        fields["scores"] = (fields["scores"] * 20).round() / 20  # also equal ones, and ones at a threshold
        targets[number]["iscrowd"][0] = number % 2
    metric = AveragePrecision(NAMES)
    metric.update(detections, targets)
    (curves,) = metric.compute_curves()
    counts = curves.by_threshold
    assert counts is not None
    for threshold in (0.0, 0.3, 0.301, 0.55, 0.95, 1.0):
        correct = [0] * 3
        predicted = [0] * 3
        for fields, target in zip(detections, targets, strict=True):
            free = [row for row in range(5) if not target["iscrowd"][row]]
            for row in fields["scores"].argsort(descending=True, stable=True).tolist():
                label = int(fields["labels"][row])
                overlaps = box_iou(fields["boxes"][row : row + 1], target["boxes"])[0]
                rows = [object_row for object_row in free if target["labels"][object_row] == label]
                best = max(rows, key=lambda object_row: float(overlaps[object_row]), default=None)
                is_correct = best is not None and float(overlaps[best]) >= 0.5
                if is_correct:
                    free.remove(best)
                is_on_crowd = bool(target["iscrowd"][0]) and _is_inside(fields["boxes"][row], target["boxes"][0])
                is_ignored = not is_correct and is_on_crowd and target["labels"][0] == label
                if fields["scores"][row] >= threshold and not is_ignored:
                    predicted[label - 1] += 1
                    correct[label - 1] += is_correct
        column = round(threshold * 1000)
        assert counts.num_correct[:, column].tolist() == correct
        assert counts.num_predicted[:, column].tolist() == predicted
    assert counts.num_correct[:, 300].sum() > counts.num_correct[:, 301].sum() > 0


def _is_inside(box: Tensor, crowd: Tensor) -> bool:
    sides = (torch.minimum(box[2:], crowd[2:]) - torch.maximum(box[:2], crowd[:2])).clamp(min=0)
    return float(sides.prod() / (box[2:] - box[:2]).prod()) >= 0.5


def test_default_threshold_of_confusions_leaves_out_false_detections_below_the_last_object() -> None:
    metric = AveragePrecision(["disc"])
    target = image((10.0, 10, 50, 50), (60.0, 60, 90, 90), (60.0, 0, 90, 20), labels=[1, 1, 1])
    # The third object is never detected: COCO's curve ends above the false detections.
    boxes = ((10.0, 10, 50, 50), (60.0, 60, 90, 90), *[(0.0, 90, 9, 99)] * 8)
    metric.update([image(*boxes, labels=[1] * 10, scores=[0.9, 0.6, *[0.2] * 8])], [target])
    (curves,) = metric.compute_curves()
    assert curves.by_threshold is not None
    assert curves.by_threshold.precision[0, 200] == 0.2
    assert curves.confusion is not None
    assert curves.confusion.note == "scores from 0.600, IoU from 0.5"
    assert curves.confusion.row_names == ("disc", None)
    assert curves.confusion.counts.tolist() == [[2, 1], [0, 0]]


def test_detection_of_another_class_is_a_confusion_and_one_on_a_crowd_does_not_count() -> None:
    crowd = (100.0, 0, 200, 100)
    target = image((10.0, 10, 50, 50), crowd, labels=[1, 2]) | {"iscrowd": torch.tensor([0, 1])}
    boxes = ((10.0, 10, 50, 50), (110.0, 10, 130, 30), (150.0, 50, 170, 70), (0.0, 200, 50, 300))
    detections = image(*boxes, labels=[3, 2, 1, 1], scores=[0.9, 0.8, 0.7, 0.1])
    counts = torch.zeros(4, 4, dtype=torch.int64)
    add_confusions(counts, detections, target, min_score=0.5, min_iou=0.5)
    # The disc was answered as a star; a disc on the crowd of squares is false, and the last score is too low.
    assert {tuple(cell): int(counts[tuple(cell)]) for cell in counts.nonzero().tolist()} == {(0, 2): 1, (3, 0): 1}
    error, text = detection_error(detections, target, min_score=0.5, min_iou=0.5)
    assert (error, text) == (pytest.approx(1 + 0.9 + 0.7), "1 missed, 2 false")


def class_logits(count: int = 500) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(-1, 3, (count,), generator=generator)
    logits = torch.randn(count, 3, generator=generator) + 2 * torch.nn.functional.one_hot(labels.clamp(min=0), 3)
    return logits, labels


def test_classification_curves_are_those_of_torchmetrics() -> None:
    logits, labels = class_logits()
    metric = ClassMetric(NAMES)
    metric.record_curves()
    for rows in torch.arange(500).split(64):
        metric.update(logits[rows].argmax(dim=1), labels[rows], logits=logits[rows])
    (curves,) = metric.compute_curves()
    (kind,) = curves.precision_recall
    is_known = labels >= 0
    probabilities = logits[is_known].double().softmax(dim=1)
    counts = curves.by_threshold
    assert counts is not None
    thresholds = torch.from_numpy(counts.thresholds)
    precision, recall, _ = multiclass_precision_recall_curve(probabilities, labels[is_known], 3, thresholds=thresholds)
    # torchmetrics adds a point at the end.
    assert counts.recall == pytest.approx(recall[:, :-1].numpy(), abs=1e-6)
    assert counts.precision == pytest.approx(precision[:, :-1].numpy(), abs=1e-6, nan_ok=True)
    assert kind.recall[:, -1].tolist() == [1.0, 1.0, 1.0]
    assert np.isin(kind.precision[0], counts.precision[0]).sum() > 100
    exact = multiclass_average_precision(probabilities, labels[is_known], 3, average=None)
    assert kind.average_precision == pytest.approx(exact.numpy(), abs=0.002)
    expected = multiclass_confusion_matrix(logits.argmax(dim=1), labels, 3, ignore_index=-1)
    assert curves.confusion is not None
    assert curves.confusion.counts.tolist() == expected.tolist()
    assert curves.confusion.counts.sum(axis=1).tolist() == curves.support.tolist()


def test_several_labels_have_a_curve_and_four_counts_a_class() -> None:
    logits, _ = class_logits()
    generator = torch.Generator().manual_seed(2)
    target = (logits + torch.randn(logits.shape, generator=generator) > 1).long()
    target[::7, 0] = -1
    metric = ClassMetric(NAMES, multi_label=True)
    metric.record_curves()
    metric.update((logits > 0).long(), target, logits=logits)
    (curves,) = metric.compute_curves()
    exact = multilabel_average_precision(logits.sigmoid(), target, 3, average=None, ignore_index=-1)
    assert curves.precision_recall[0].average_precision == pytest.approx(exact.numpy(), abs=0.002)
    assert curves.confusion is not None
    assert curves.confusion.counts.sum(axis=1).tolist() == (target >= 0).sum(dim=0).tolist()


@pytest.mark.parametrize("scale", [1, 20, 50])
def test_average_precision_of_confident_networks_is_close_to_the_exact_one(scale: int) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (3000,), generator=generator)
    logits = scale * (torch.randn(3000, 3, generator=generator) + torch.nn.functional.one_hot(labels, 3))
    histogram = torch.zeros(3, NUM_LOGIT_BINS, 2, dtype=torch.int64)
    for rows in torch.arange(3000).split(1000):
        add_logits(histogram, logits[rows], labels[rows], multi_label=False)
    curve = class_curve(threshold_counts(histogram, class_thresholds(), histogram[..., 1].sum(dim=1)))
    for column in range(3):
        # Probabilities would be rounded to 1.
        other_columns = [index for index in range(3) if index != column]
        odds = logits[:, column].double() - logits[:, other_columns].double().logsumexp(dim=1)
        is_true = (labels == column)[odds.argsort(descending=True)].double()
        exact = (is_true * is_true.cumsum(0) / torch.arange(1, 3001)).sum() / is_true.sum()
        assert curve.average_precision[column] == pytest.approx(float(exact), abs=0.001)


def allocated_bytes(metric: ClassMetric) -> int:
    logits = torch.zeros(2, MAX_CONFUSION_CLASSES)
    with torch.profiler.profile(profile_memory=True) as profiler:
        metric.update(torch.tensor([4, 5]), torch.tensor([3, -1]), logits=logits)
    return sum(max(0, event.self_cpu_memory_usage) for event in profiler.events())


def test_update_of_curves_takes_memory_for_the_batch_and_not_for_all_classes() -> None:
    metric = ClassMetric([str(i) for i in range(MAX_CONFUSION_CLASSES)])
    num_bytes = allocated_bytes(metric)
    metric.record_curves()
    assert allocated_bytes(metric) - num_bytes < 1e6 < min(metric.confusion.nbytes, metric.histograms.nbytes)
    assert metric.confusion.nonzero().tolist() == [[3, 4]]
    assert metric.histograms.sum() == MAX_CONFUSION_CLASSES


def test_more_classes_than_the_limit_have_no_curves() -> None:
    metric = ClassMetric([str(i) for i in range(MAX_CONFUSION_CLASSES + 1)])
    metric.record_curves()
    metric.update(torch.tensor([0]), torch.tensor([0]), logits=torch.zeros(1, MAX_CONFUSION_CLASSES + 1))
    assert metric.compute_curves() == []


def test_attribute_without_scores_has_the_confusion_matrix_alone() -> None:
    metric = ClassMetric(NAMES)
    metric.record_curves()
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 2]))
    (curves,) = metric.compute_curves("finish")
    assert (curves.label, list(curves.precision_recall)) == ("finish", [])
    metric.reset()
    assert metric.confusion.sum() == 0


def test_curves_that_were_not_recorded_are_refused() -> None:
    metric = ClassMetric(NAMES)
    metric.update(torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(RuntimeError, match=r"call record_curves\(\) before"):
        metric.compute_curves()
    with pytest.raises(RuntimeError, match=r"call record_curves\(point_names\) before"):
        NormalizedMeanError().compute_curves()


def test_error_curve_reaches_to_the_errors_of_a_poor_model() -> None:
    metric = NormalizedMeanError(failure_threshold=0.1)
    metric.record_curves(["a"])
    target = torch.zeros(20, 1, 2)
    boxes = torch.tensor([[0.0, 0, 100, 100]]).expand(20, 4)
    mask = torch.ones(20, 1, dtype=torch.bool)
    metric.update(target + 50, target, mask, boxes)
    (curves,) = metric.compute_curves()
    assert curves.errors is not None
    assert curves.errors.errors[-1] == pytest.approx(0.5**0.5, abs=0.002)
    assert curves.errors.shares[-1] == 1


def test_error_curve_is_the_cumulative_distribution_and_has_the_area_of_auc() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = torch.tensor([[0.0, 0, 100, 100]]).expand(200, 4)
    target = torch.rand(200, 3, 2, generator=generator) * 100
    predicted = target + torch.randn(200, 3, 2, generator=generator) * torch.tensor([2.0, 4.0, 8.0])[:, None]
    mask = torch.ones(200, 3, dtype=torch.bool)
    mask[::2, 1] = False
    metric = NormalizedMeanError(failure_threshold=0.08)
    metric.record_curves(["a", "b", "c"])
    metric.update(predicted, target, mask, boxes)
    (curves,) = metric.compute_curves()
    errors = curves.errors
    assert errors is not None
    distances = (predicted - target).norm(dim=-1) / 100
    faces = metric.errors(predicted, target, mask, boxes)
    expected = (distances * mask).sum(dim=1) / mask.sum(dim=1)
    assert faces.tolist() == pytest.approx(expected.tolist())
    shares = [(faces <= limit + 1e-7).float().mean().item() for limit in errors.errors.tolist()]
    assert errors.shares.tolist() == pytest.approx(shares, abs=0.006)  # a face at the edge of a bin
    inside = errors.errors <= errors.limit + 1e-9
    area = np.trapezoid(errors.shares[inside], errors.errors[inside]) / errors.limit
    assert area == pytest.approx(errors.area, abs=0.01)
    assert errors.area == pytest.approx(metric.compute_scores().auc)
    means = [distances[mask[:, k], k].mean().item() for k in range(3)]
    assert errors.point_errors.tolist() == pytest.approx(means, rel=1e-5)
