"""Statistics of samplers against epochs that a loader draws, and padding against batches that it collates."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import yaml
from torch import tensor
from torchvision import tv_tensors

from lit_loader import DataLoader
from lit_loader.annotations import AnnotationTable, Attribute
from lit_loader.collate import DetectionCollate
from lit_loader.datamodules import RandomSamplerConfig, WeightedSamplerConfig
from lit_loader.errors import SettingError
from lit_loader.inspection.statistics_sampling import BATCHINGS, SAMPLERS, BatchShape, sampling_statistics
from lit_loader.transforms import detection_transforms
from tests.support.any_table import small_table
from tests.support.chi_square import assert_fits
from tests.support.documents import ROOT

# Samplers of images that are not in shards.
FOR_FILES = [name for name in SAMPLERS if name != "block_shuffle"]
SIZES = [(40, 30), (30, 40), (90, 31), (64, 64), (33, 95)]


def unbalanced_table(num_images: int = 50) -> AnnotationTable:
    """Images with one or two objects of three classes, every tenth image empty, in five sizes."""
    labels = []
    counts = []
    for i in range(num_images):
        image_labels = [] if i % 10 == 9 else [0, 1] if i % 10 == 4 else [2] if i % 25 == 3 else [0]
        labels += image_labels
        counts.append(len(image_labels))
    sizes = np.array([SIZES[i * i % 5] for i in range(num_images)])
    return AnnotationTable(
        root="/",
        image_paths=[f"{i}.jpg" for i in range(num_images)],
        class_names=("common", "rare", "rarest"),
        shards=np.arange(num_images) // 17,
        widths=sizes[:, 0],
        heights=sizes[:, 1],
        offsets=np.cumsum([0, *counts]),
        boxes=np.tile([1, 2, 8, 9], (len(labels), 1)),
        labels=labels,
        attributes={"side": Attribute(ids=np.arange(len(labels)) % 7 // 6, names=("left", "right"))},
    )


@pytest.mark.parametrize(("group", "types"), [("sampler", SAMPLERS), ("batching", BATCHINGS)])
def test_every_shipped_config_has_a_row_with_its_defaults(group, types):
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf" / group).glob("*.yaml")}
    assert types.keys() == files.keys()
    for name, config in files.items():
        assert config.pop("_target_") == f"lit_loader.datamodules.{types[name].__name__}"
        defaults = types[name]()
        assert {field.name: getattr(defaults, field.name) for field in fields(defaults)} == config


def drawn_epochs(config, table, *, seed=0, num_epochs=3):
    """Return the images of each epoch as a loader delivers them."""
    loader = DataLoader(range(table.num_images), batch_size=7, sampler=config.make_sampler(table), seed=seed)
    epochs = []
    for epoch in range(num_epochs):
        loader.set_epoch(epoch)
        epochs.append(torch.cat(list(loader)).numpy())
    return epochs


@pytest.mark.parametrize("name", SAMPLERS)
def test_repeats_and_unseen_images_are_those_of_a_loaders_epochs(name):
    table = unbalanced_table()
    config = SAMPLERS[name]()
    statistics = sampling_statistics(table, {"row": config}, {}).samplers["row"]
    counts = [np.bincount(epoch, minlength=table.num_images) for epoch in drawn_epochs(config, table)]
    assert statistics.num_samples == counts[0].sum()
    assert statistics.max_repeats == np.max(counts)
    assert statistics.num_unseen == pytest.approx(np.mean([(epoch == 0).sum() for epoch in counts]))
    assert statistics.num_unseen_in_all == (np.sum(counts, axis=0) == 0).sum()


@pytest.mark.parametrize("name", SAMPLERS)
def test_class_mix_and_empty_share_fit_drawn_epochs(name):
    table = unbalanced_table()
    config = SAMPLERS[name]()
    statistics = sampling_statistics(table, {"row": config}, {}).samplers["row"]
    epochs = drawn_epochs(config, table, num_epochs=60)
    images = np.concatenate(epochs)
    num_empty = (np.diff(table.offsets) == 0)[images].sum()
    labels = table.image_class_counts()[images].sum(axis=0)
    if name in ("random", "sequential", "repeat_factor", "block_shuffle"):
        # Every image once: exact.
        np.testing.assert_allclose(statistics.class_mix, labels / labels.sum())
        assert statistics.empty_share == pytest.approx(num_empty / len(images))
        return
    # An image with two classes delivers both, so the mix is compared by kind of image.
    kinds = np.array(["empty", "common", "rare", "rarest"])[
        np.where(
            np.diff(table.offsets) == 0, 0, 1 + table.image_class_counts()[:, 1] + 2 * table.image_class_counts()[:, 2]
        )
    ]
    visits = config.make_sampler(table).expected_visits()
    present = [kind for kind in np.unique(kinds) if visits[kinds == kind].sum()]
    expected = np.array([visits[kinds == kind].sum() for kind in present])
    assert_fits([(kinds[images] == kind).sum() for kind in present], expected / expected.sum())
    assert statistics.empty_share == pytest.approx(visits[kinds == "empty"].sum() / visits.sum())
    if name in ("class_balanced", "class_aware"):
        # Quotas are exact in every epoch, with and without images that have no class.
        assert len({(kinds[epoch] == "empty").sum() for epoch in epochs}) == 1
        assert statistics.empty_share == pytest.approx(num_empty / len(images))
    delivered = (visits[:, None] * table.image_class_counts()).sum(axis=0)
    np.testing.assert_allclose(statistics.class_mix, delivered / delivered.sum())


class Blank(torch.utils.data.Dataset):
    """Blank images of a table's sizes, resized by the preset."""

    def __init__(self, table, **resize):
        self.sizes = list(zip(table.heights.tolist(), table.widths.tolist(), strict=True))
        self.transform = detection_transforms(False, **resize)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        boxes = tv_tensors.BoundingBoxes(tensor([[1.0, 2, 8, 9]]), format="XYXY", canvas_size=self.sizes[index])
        image = tv_tensors.Image(torch.zeros(3, *self.sizes[index], dtype=torch.uint8))
        return self.transform(image, {"boxes": boxes, "labels": tensor([1])})


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize(
    ("sampler", "resize", "divisor"),
    [
        (RandomSamplerConfig(), {"size": 48, "max_size": 77}, 1),
        (WeightedSamplerConfig(), {"size": None, "max_size": 50}, 8),
        (RandomSamplerConfig(), {"size": None, "max_size": None}, 32),
    ],
    ids=["shorter side", "longer side, weighted", "own size"],
)
def test_padding_is_that_of_collated_batches(batching, sampler, resize, divisor):
    table = unbalanced_table()
    shape = BatchShape(batch_size=4, size_divisor=divisor, **resize)
    batchings = {"column": BATCHINGS[batching]()}
    statistics = sampling_statistics(table, {"row": sampler}, batchings, batch=shape, seed=3).samplers["row"]
    num_pixels = 0
    num_padded = 0
    loader = DataLoader(
        Blank(table, **resize),
        batch_size=4,
        sampler=batchings["column"].batched(sampler.make_sampler(table), table),
        collate_fn=DetectionCollate(images="pad", size_divisor=divisor),
        seed=3,
    )
    for batch in loader:
        num_padded += int((~batch.mask).sum())
        num_pixels += batch.mask.numel()
    assert statistics.padding["column"] == pytest.approx(num_padded / num_pixels, abs=1e-12)
    assert 0 < num_padded < num_pixels


def test_padding_of_large_sets_is_measured_all_over_the_epoch(monkeypatch):
    monkeypatch.setattr("lit_loader.inspection.statistics_sampling._MAX_BATCHES", 32)
    # Sorted by size: the first half needs no padding, and the second half the same padding in every batch.
    num_images = 4000
    heights = np.where(np.arange(num_images) < num_images // 2, 64, [64, 32] * (num_images // 2))
    table = small_table(
        image_paths=[f"{i}.jpg" for i in range(num_images)],
        widths=[64] * num_images,
        heights=heights,
        offsets=[0] * (num_images + 1),
        boxes=np.zeros((0, 4)),
        labels=[],
    )
    shape = BatchShape(size=None, max_size=None)
    samplers = {"row": SAMPLERS["sequential"]()}
    batchings = {"column": BATCHINGS["plain"]()}
    statistics = sampling_statistics(table, samplers, batchings, batch=shape).samplers["row"]
    assert statistics.padding["column"] == pytest.approx(1 / 8, abs=0.01)


def test_attribute_is_counted_instead_of_the_class():
    table = unbalanced_table()
    statistics = sampling_statistics(
        table, {"row": SAMPLERS["class_balanced"](balance_by="side")}, {}, attribute="side"
    )
    assert statistics.class_names == ("left", "right")
    assert statistics.class_mix[1] < 0.2
    assert statistics.samplers["row"].class_mix[1] > 0.4
    assert statistics.changed_mixes.keys() == {"row"}


def test_sampler_that_does_not_fit_the_set_is_a_problem_with_its_reason():
    table = small_table(offsets=[0, 0], boxes=np.zeros((0, 4)), labels=[])
    statistics = sampling_statistics(table)
    assert statistics.empty_share == 1
    assert "sampler=class_aware" in statistics.problems
    assert statistics.samplers["sampler=random"].padding["batching=plain"] is not None
    assert statistics.samplers.keys() | statistics.problems.keys() == {f"sampler={name}" for name in FOR_FILES}


def test_set_without_images_has_problems_and_unknown_sizes_have_no_padding():
    nothing = small_table(image_paths=[], offsets=[0], boxes=np.zeros((0, 4)), labels=[], widths=[], heights=[])
    statistics = sampling_statistics(nothing)
    assert statistics.problems.keys() == {f"sampler={name}" for name in FOR_FILES if name != "sequential"}
    row = statistics.samplers["sampler=sequential"]
    assert (row.num_samples, row.max_repeats, row.num_unseen, row.empty_share) == (0, 0, 0, 0)
    assert set(row.padding.values()) == {None}
    statistics = sampling_statistics(small_table(widths=[0], heights=[0]))
    assert statistics.num_unknown_sizes == 1
    assert set(statistics.samplers["sampler=random"].padding.values()) == {None}


def test_sampler_without_closed_form_has_no_mix():
    config = WeightedSamplerConfig(num_samples=5, replacement=False)
    statistics = sampling_statistics(unbalanced_table(), {"row": config}, {})
    assert statistics.samplers["row"].class_mix is None
    assert statistics.samplers["row"].empty_share is None
    assert statistics.to_dict()["samplers"]["row"]["class_mix"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"size_divisor": None}, "size_divisor=None must be a number of at least 1"),
        ({"size": 800, "max_size": 800}, "max_size=800 must be above size=800"),
    ],
)
def test_impossible_batches_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        BatchShape(**settings)


def test_zero_epochs_are_refused():
    with pytest.raises(SettingError, match="num_epochs=0 must be at least 1"):
        sampling_statistics(unbalanced_table(), num_epochs=0)


def test_shuffles_of_shards_are_compared():
    table = unbalanced_table(200)
    samplers = {
        "random": SAMPLERS["random"](),
        "blocks": SAMPLERS["block_shuffle"](open_shards=2, block_size=None),
        "sequential": SAMPLERS["sequential"](),
    }
    statistics = sampling_statistics(table, samplers, batch=BatchShape(batch_size=10))
    assert statistics.samplers["blocks"].padding["batching=plain"] is not None
    assert statistics.samplers["blocks"].padding["batching=size"] is None
    random, blocks, sequential = (part.shuffle for part in statistics.samplers.values())
    assert random.score == pytest.approx(1, abs=0.05)
    assert sequential.score < blocks.score - 0.2 < random.score - 0.4
    assert statistics.to_dict()["samplers"]["blocks"]["shuffle"]["score"] == blocks.score
    files = replace(table, shards=None)
    statistics = sampling_statistics(files, {"random": SAMPLERS["random"]()}, {})
    assert statistics.samplers["random"].shuffle is None


def test_block_order_of_files_is_a_problem_only_if_it_is_asked_for():
    table = replace(unbalanced_table(), shards=None)
    assert "sampler=block_shuffle" not in sampling_statistics(table, batchings={}).problems
    statistics = sampling_statistics(table, {"row": SAMPLERS["block_shuffle"]()}, {})
    assert "pack the set with lit-loader pack" in statistics.problems["row"]
