"""Tiles as samples of the detection and multi-task data modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lit_loader import DetectionDataModule, MultiTaskDataModule, Tiling
from lit_loader.annotations import AnnotationTable, tile_images, tile_table
from lit_loader.datamodules import RandomSamplerConfig, SequentialSamplerConfig, WorkerSettings
from lit_loader.images import decode_image
from lit_loader.samplers import RandomSampler
from tests.support.drawn_set import SIZE, DrawnSource, draw_set, drawn_source

TILING = {"size": [32, 40], "overlap": 0.25, "keep": 0.5}
SETTINGS = {"batch_size": 4, "seed": 5, "num_workers": 0}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return drawn_source(tmp_path_factory.mktemp("drawn"))


@pytest.mark.parametrize("kind", [DetectionDataModule, MultiTaskDataModule])
def test_samples_of_tiled_stages_are_tiles(source, kind):
    datamodule = kind(source, tiling=TILING | {"stages": ["train", "test"]}, **SETTINGS)
    assert datamodule.tiling == Tiling((32, 40), overlap=0.25, keep=0.5, stages=["train", "test"])
    for stage in ("train", "test"):
        (tiles,) = datamodule.tables(stage)
        (images,) = datamodule.image_tables(stage)
        assert images.regions is None
        np.testing.assert_array_equal(tiles.regions, tile_table(images, datamodule.tiling).regions)
        assert tile_images(tiles)[-1] + 1 == images.num_images
        assert tiles.num_images == 4 * images.num_images
    for stage in ("val", "predict"):
        assert datamodule.tables(stage)[0] is datamodule.image_tables(stage)[0]
        assert datamodule.tables(stage)[0].regions is None


def test_tiles_of_an_epoch_show_each_part_of_every_image_once(source):
    datamodule = DetectionDataModule(
        source, tiling=TILING, train_transforms=lambda *sample: sample, images="stack", **SETTINGS
    )
    (tiles,) = datamodule.tables("train")
    rows = []
    with datamodule.train_dataloader() as loader:
        for images, targets in loader:
            for image, target in zip(images, targets, strict=True):
                row = target["image_id"]
                x0, y0, x1, y1 = tiles.regions[row].tolist()
                assert torch.equal(image, decode_image(tiles.image_path(row))[:, y0:y1, x0:x1])
                assert len(target["boxes"]) == tiles.offsets[row + 1] - tiles.offsets[row]
                rows.append(row)
    assert sorted(rows) == list(range(tiles.num_images))


def test_multi_task_batches_of_tiles_have_points_and_attributes(source):
    datamodule = MultiTaskDataModule(source, tiling=TILING, **SETTINGS)
    batch = datamodule.first_batch("train")
    assert tuple(batch.images.shape) == (4, 3, 32, 40)
    assert batch.keypoints.shape[-2:] == (3, 2)
    assert set(batch.attributes) == {"finish"}


def test_crowds_are_left_out_of_training_before_the_images_are_tiled(tmp_path):
    table = draw_set(tmp_path, num_images=6, objects=1, crowd=[True, False] * 3)
    datamodule = DetectionDataModule(DrawnSource(train=table, val=table), tiling={"size": 32, "keep": 1}, **SETTINGS)
    (images,) = datamodule.image_tables("train")
    assert list(images.image_paths) == ["1.png", "3.png", "5.png"]
    assert not datamodule.tables("train")[0].crowd.any()
    (tiles,) = datamodule.tables("val")
    assert datamodule.image_tables("val") == [table]
    # Parts of crowd regions stay in the tiles that show them, although keep is 1.
    assert tiles.crowd.sum() > 3


def test_predicted_tiles_have_the_names_of_training(tmp_path):
    train = draw_set(tmp_path / "train")
    predict = AnnotationTable(
        root=train.root, image_paths=["0.png", "1.png"], class_names=[], offsets=[0, 0, 0], boxes=[], labels=[]
    )
    datamodule = DetectionDataModule(DrawnSource(train=train, predict=predict), tiling={"size": 32}, **SETTINGS)
    (tiles,) = datamodule.tables("predict")
    assert tiles.class_names == train.class_names
    # The headers of the files have the sizes.
    assert tiles.regions.max(axis=0).tolist()[2:] == list(SIZE)


def test_the_exif_setting_of_the_data_module_decides_the_sides_of_unknown_images(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 32)).save(tmp_path / "turned.jpg", exif=exif)
    table = AnnotationTable(
        root=tmp_path, image_paths=["turned.jpg"], class_names=["a"], offsets=[0, 0], boxes=[], labels=[]
    )
    for exif_orientation, size in ((True, [32, 64]), (False, [64, 32])):
        reading = {"exif_orientation": exif_orientation}
        datamodule = DetectionDataModule(DrawnSource(test=table), tiling={"size": 16}, reading=reading, **SETTINGS)
        assert datamodule.tables("test")[0].regions.max(axis=0).tolist()[2:] == size


def test_summary_names_tiles_and_images(source):
    datamodule = DetectionDataModule(source, tiling=TILING, **SETTINGS)
    assert "96 tiles of 24 images" in datamodule.summary()
    summary = datamodule.summaries(["train"])[0]
    assert (summary.num_images, summary.num_tiled_images) == (96, 24)
    assert DetectionDataModule(source, **SETTINGS).summaries(["train"])[0].num_tiled_images is None


def test_tiling_is_a_hyperparameter_that_restores_itself(source):
    datamodule = DetectionDataModule(source, tiling=Tiling(32, keep=0.5, stages=["train"]), **SETTINGS)
    assert datamodule.hparams["tiling"] == {"size": 32, "overlap": 0.2, "keep": 0.5, "stages": ["train"]}
    assert DetectionDataModule(source, **datamodule.hparams).tiling == datamodule.tiling
    plain = MultiTaskDataModule(source, **SETTINGS)
    assert plain.tiling is None
    assert plain.hparams["tiling"] is None


@pytest.mark.parametrize(
    ("tiling", "error", "words"),
    [
        ({"size": 0}, ValueError, "size=0"),
        ({"size": 32, "overlaps": 0.2}, TypeError, "overlaps"),
        ({"overlap": 0.2}, TypeError, "size"),
        (640, TypeError, "tiling=640"),
    ],
)
@pytest.mark.parametrize("kind", [DetectionDataModule, MultiTaskDataModule])
def test_a_wrong_tiling_is_refused_where_it_is_given(source, kind, tiling, error, words):
    with pytest.raises(error, match=words):
        kind(source, tiling=tiling, **SETTINGS)


@pytest.mark.parametrize("cache", [False, True])
def test_tiles_have_the_same_bits_in_all_workers_and_after_a_resume(source, tmp_path, cache):
    def loader(stop=None, state=None, **workers):
        datamodule = DetectionDataModule(
            source,
            tiling=TILING,
            images="stack",
            train_sampler=RandomSamplerConfig(empty_share=0.25),
            train_transforms={"size": [24, 24], "hflip": 0.5},
            reading={"decode": "fast"},
            cache=cache,
            cache_dir=tmp_path,
            workers=WorkerSettings(**{"num_workers": 0} | workers),
            batch_size=4,
            seed=5,
        )
        if state is not None:
            datamodule.load_state_dict(state)
        batches = []
        with datamodule.train_dataloader() as train_loader:
            for images, targets in train_loader:
                batches.append((images, [target["image_id"] for target in targets]))
                if len(batches) == stop:
                    return batches, {"train": train_loader.state_dict()}
        return batches, None

    expected, _ = loader()
    first, state = loader(stop=3)
    second, _ = loader(state=state, num_workers=1)
    workers = (*WORKERS, FORKSERVER) if cache else WORKERS
    runs = [first + second, *(loader(**settings)[0] for settings in workers)]
    for batches in runs:
        assert len(batches) == len(expected)
        for (images, numbers), (expected_images, expected_numbers) in zip(batches, expected, strict=True):
            assert numbers == expected_numbers
            assert torch.equal(images, expected_images)


WORKERS = ({"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"})
# It unpickles tables and cache as a spawned process does; test_extra_transforms.py spawns one without a cache.
FORKSERVER = {"num_workers": 1, "multiprocessing_context": "forkserver"}


# -- share of empty samples --------------------------------------------------------------------------------


def table_of(counts):
    """A table of images with these numbers of objects."""
    return AnnotationTable(
        root="/",
        image_paths=[f"{number}.png" for number in range(len(counts))],
        class_names=["a"],
        offsets=np.cumsum([0, *counts]),
        boxes=np.zeros((sum(counts), 4)),
        labels=np.zeros(sum(counts), int),
    )


@given(
    num_labelled=st.integers(1, 40), num_empty=st.integers(1, 40), share=st.floats(0, 0.9), seed=st.integers(0, 2**32)
)
def test_empty_share_of_samples_is_empty_and_every_other_sample_comes_once(num_labelled, num_empty, share, seed):
    counts = np.random.default_rng(seed).permutation([1] * num_labelled + [0] * num_empty)
    sampler = RandomSamplerConfig(empty_share=share).make_sampler(table_of(counts.tolist()))
    epochs = [sampler.order(seed=seed, epoch=epoch)[:] for epoch in range(3)]
    for rows in epochs:
        labelled = rows[counts[rows] > 0]
        assert sorted(labelled) == np.flatnonzero(counts).tolist()
        # As close to the share as a whole number of samples is, but at least one.
        expected = share / (1 - share) * num_labelled
        assert abs(len(rows) - num_labelled - expected) <= 1
        assert (len(rows) > num_labelled) == (share > 0)
    empty = np.concatenate([rows[counts[rows] == 0] for rows in epochs])
    visits = np.bincount(empty, minlength=len(counts))[counts == 0]
    # Cycles continue from epoch to epoch.
    assert visits.max() - visits.min() <= 1


def test_without_an_empty_share_every_sample_comes_once():
    sampler = RandomSamplerConfig().make_sampler(table_of([1, 0, 0]))
    assert type(sampler) is RandomSampler
    assert sorted(sampler.order(seed=0, epoch=0)[:]) == [0, 1, 2]


@pytest.mark.parametrize(("counts", "kind"), [([1, 2], "an object"), ([0, 0], "no object")])
def test_table_of_one_kind_of_images_uses_each_once_whatever_the_empty_share(counts, kind, caplog):
    with caplog.at_level("INFO"):
        sampler = RandomSamplerConfig(empty_share=0.5).make_sampler(table_of(counts))
    assert sorted(sampler.order(seed=0, epoch=0)[:]) == [0, 1]
    assert f"every image has {kind}" in caplog.text


def test_empty_shares_outside_of_their_range_are_refused():
    for share, words in ((1, "below 1"), (1.5, "empty_share"), (-0.1, "empty_share")):
        with pytest.raises(ValueError, match=words):
            RandomSamplerConfig(empty_share=share)


def test_samplers_weigh_tiles(source):
    datamodule = DetectionDataModule(
        source, tiling=TILING, train_sampler=RandomSamplerConfig(empty_share=0.5), **SETTINGS
    )
    (tiles,) = datamodule.tables("train")
    num_labelled = int((np.diff(tiles.offsets) > 0).sum())
    assert len(datamodule.train_dataloader().sampler) == 2 * num_labelled
    ordered = DetectionDataModule(source, tiling=TILING, val_sampler=SequentialSamplerConfig(), **SETTINGS)
    assert len(ordered.val_dataloader().sampler) == 4 * 8
