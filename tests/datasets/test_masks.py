"""Masks in the targets of the detection data set, and a model that is trained on them."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import tv_tensors
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from lit_loader import DataLoader, DetectionCollate
from lit_loader.annotations import AnnotationTable, Attribute, Masks
from lit_loader.annotations.masks import run_lengths
from lit_loader.datasets import DetectionDataset
from lit_loader.images import CacheSettings, ImageReading
from lit_loader.transforms import SanitizeObjects, detection_transforms

WIDTH = 96
HEIGHT = 64
TRIANGLE = np.array([[0, 24], [12, 0], [24, 24]], dtype=np.float32)
HOUSE = np.array([[0, 24], [0, 10], [12, 0], [24, 10], [24, 24]], dtype=np.float32)


def draw_polygons(root, *, num_images=6, extension="png", seed=0):
    """Draw triangles and houses of bright colours on dark images, image i with i % 3 of them, and return the table."""
    rng = np.random.default_rng(seed)
    root.mkdir(exist_ok=True)
    rows = []
    labels = []
    boxes = []
    counts = []
    for i in range(num_images):
        pixels = rng.integers(0, 60, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        counts.append(i % 3)
        for place in range(i % 3):
            label = int(rng.integers(2))
            shift = np.float32([4 + 48 * place + rng.uniform(0, 12), 4 + rng.uniform(0, 28)])
            shape = (TRIANGLE, HOUSE)[label] * np.float32(rng.uniform(0.8, 1.3)) + shift
            mask = Masks.from_rows([[shape]]).rasterize(0, HEIGHT, WIDTH)
            pixels[mask > 0] = (240, 200 * label, 30)
            rows.append(run_lengths(mask) if len(rows) % 4 == 3 else [shape])
            labels.append(label)
            boxes.append([*shape.min(axis=0), *shape.max(axis=0)])
        Image.fromarray(pixels).save(root / f"{i}.{extension}", quality=95)
    return AnnotationTable(
        root=root,
        image_paths=[f"{i}.{extension}" for i in range(num_images)],
        class_names=("triangle", "house"),
        widths=[WIDTH] * num_images,
        heights=[HEIGHT] * num_images,
        offsets=np.cumsum([0, *counts]),
        boxes=boxes,
        labels=labels,
        masks=Masks.from_rows(rows),
    )


@pytest.fixture
def table(tmp_path):
    return draw_polygons(tmp_path / "set")


def test_masks_come_as_pixels_of_the_decoded_image(table):
    dataset = DetectionDataset(table, masks=True)
    for index, (image, target) in enumerate(dataset):
        masks = target["masks"]
        assert isinstance(masks, tv_tensors.Mask)
        assert (masks.dtype, masks.shape) == (torch.uint8, (index % 3, HEIGHT, WIDTH))
        bright = image[0] > 200
        assert overlap(masks, bright) == 1 or not len(masks)
        for mask, box in zip(masks, target["boxes"], strict=True):
            ys, xs = np.nonzero(mask.numpy())
            drawn = torch.tensor([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            assert (drawn - box.as_subclass(torch.Tensor)).abs().max() < 1.5
    assert "masks" not in DetectionDataset(table)[1][1]


def test_a_table_without_masks_is_refused(table):
    bare = dataclasses.replace(table, masks=None)
    with pytest.raises(ValueError, match=r"masks=True but no object of AnnotationTable.* has a mask; read"):
        DetectionDataset(bare, masks=True)
    named = dataclasses.replace(table, attributes={"masks": Attribute(ids=table.labels, names=("a", "b"))})
    with pytest.raises(ValueError, match="names of other target fields"):
        DetectionDataset(named, attributes="all")


def test_an_object_without_a_mask_has_an_empty_one_and_is_dropped_with_its_box(table):
    mixed = dataclasses.replace(table, masks=Masks.from_rows([None, *([[[[0, 0], [9, 0], [9, 9]]]] * 5)]))
    assert DetectionDataset(mixed, masks=True)[1][1]["masks"].sum() == 0
    _, target = DetectionDataset(mixed, masks=True, transforms=SanitizeObjects())[1]
    assert (len(target["boxes"]), target["masks"].shape) == (0, (0, HEIGHT, WIDTH))


def test_masks_go_with_their_objects_and_images(table):
    dataset = DetectionDataset(table, masks=True)
    objects = DetectionDataset(table.per_object([4, 1]), masks=True)
    assert torch.equal(objects[0][1]["masks"], dataset[5][1]["masks"][:1])
    assert torch.equal(objects[1][1]["masks"], dataset[2][1]["masks"][:1])
    unpickled = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(unpickled[5][1]["masks"], dataset[5][1]["masks"])


def overlap(masks, drawn):
    """The intersection over union of all masks and of the pixels shown."""
    mask = masks.as_subclass(torch.Tensor).bool().any(dim=0)
    return float((mask & drawn).sum() / (mask | drawn).sum())


@pytest.mark.parametrize("settings", [None, {}, {"cache_size": 48}], ids=["no cache", "cache", "small"])
@pytest.mark.parametrize("decode", ["exact", "fast"])
def test_masks_have_the_size_of_the_image_whatever_reads_it(tmp_path, decode, settings):
    table = draw_polygons(tmp_path / "set", extension="jpg")
    size = (32, 48) if settings else (HEIGHT, WIDTH)
    cache = settings is not None and CacheSettings(cache_dir=tmp_path, **settings)
    for transforms, expected in (
        (None, size),
        (detection_transforms(False, size=(40, 50)), (40, 50)),
        (detection_transforms(True, size=40, hflip=1, vflip=1), (40, 60)),
        (detection_transforms(False, size=(64, 64), letterbox=True), (64, 64)),
    ):
        dataset = DetectionDataset(
            table, masks=True, transforms=transforms, reading=ImageReading(decode=decode), cache=cache
        )
        for index in (2, 5):
            image, target = dataset[index]
            assert target["masks"].shape == (2, *expected) == (2, *image.shape[-2:])
            bright = image[0].float() / (255 if image.dtype == torch.uint8 else 1) > 0.53
            assert overlap(target["masks"], bright) > 0.8


def test_masks_of_another_size_than_the_image_are_cut_as_boxes_are(tmp_path, table):
    Image.new("RGB", (40, 30)).save(table.image_path(5))
    _, target = DetectionDataset(table, masks=True)[5]
    assert target["masks"].shape == (2, 30, 40)
    for mask, row in zip(target["masks"], (4, 5), strict=True):
        np.testing.assert_array_equal(mask, table.masks.rasterize(row, HEIGHT, WIDTH)[:30, :40])


def mask_rcnn(num_classes=3, **settings):
    """torchvision's Mask R-CNN with a small backbone and small heads: its own have 44 million weights."""
    channels = (16, 32, 64)
    layers = [
        nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.GroupNorm(4, b), nn.ReLU())
        for a, b in zip((3, *channels), channels, strict=False)
    ]
    backbone = nn.Sequential(*layers, nn.Conv2d(64, 64, 3, padding=1))
    backbone.out_channels = 64
    return MaskRCNN(
        backbone,
        box_head=TwoMLPHead(64 * 5**2, 128),
        box_predictor=FastRCNNPredictor(128, num_classes),
        mask_head=MaskRCNNHeads(64, (32, 32), 1),
        mask_predictor=MaskRCNNPredictor(32, 32, num_classes),
        rpn_anchor_generator=AnchorGenerator(sizes=((16, 24, 32),), aspect_ratios=((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], output_size=5, sampling_ratio=2),
        mask_roi_pool=MultiScaleRoIAlign(["0"], output_size=10, sampling_ratio=2),
        min_size=HEIGHT,
        max_size=WIDTH,
        box_batch_size_per_image=64,
        rpn_post_nms_top_n_train=100,
        **settings,
    )


@pytest.mark.soak
def test_mask_rcnn_learns_drawn_polygons(tmp_path):
    table = draw_polygons(tmp_path / "set", num_images=48)
    dataset = DetectionDataset(
        table.select(np.flatnonzero(np.diff(table.offsets) > 0)),
        masks=True,
        transforms=detection_transforms(True, hflip=0.5, rotation=10),
    )
    torch.manual_seed(0)
    model = mask_rcnn().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    with DataLoader(dataset, batch_size=2, shuffle=True, collate_fn=DetectionCollate(images="list")) as loader:
        while len(losses) < 50:
            for images, targets in loader:
                parts = model(images, targets)
                loss = sum(parts.values())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append((loss.item(), parts["loss_mask"].item()))
                if len(losses) == 50:
                    break
    for name, column in zip(("all", "masks"), np.array(losses).T, strict=True):
        assert column[-10:].mean() < 0.8 * column[:10].mean(), (name, column.round(2).tolist())
