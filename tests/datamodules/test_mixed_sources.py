"""Training on several tables: joined and mixed in every batch, on any workers and ranks, resumed in mid-epoch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, SequentialSampler

from lit_loader import DetectionDataModule, MixedSource, MultiTaskDataModule
from lit_loader.callbacks import ClassMixMonitor, ReweightClasses
from lit_loader.collate import batch_images, batch_targets
from lit_loader.datamodules import (
    AspectRatioBatching,
    ClassBalancedSamplerConfig,
    ClassificationDataModule,
    PlainBatching,
    WeightedSamplerConfig,
    WorkerSettings,
)
from lit_loader.datasets import AutoSource
from lit_loader.errors import BadSamplesWarning
from lit_loader.images import ImageReading
from lit_loader.samplers import MixedSourceSampler, WeightedRandomSampler
from tests.support.drawn_set import DrawnSource, draw_set
from tests.support.lightning_ranks import on_ranks, trainer
from tests.support.lightning_resuming import Learner, Save, assert_same, fitted
from tests.support.made_sets import WITHOUT_POINTS
from tests.support.mixed_sets import make_folders, mixed_source
from tests.support.recording_model import RecordingModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*has shuffling enabled"),
    pytest.mark.filterwarnings("ignore:predict returned None"),
]

NAMES = ("plant", "street", "field")
PER_BATCH = {"ratio": {"plant": 2, "street": 1, "field": 1}, "ratio_per": "batch"}
TRANSFORMS = {"train_transforms": {"photometric": 0.9, "rotation": 20.0, "size": 32}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    make_folders(folder)
    return folder


def datamodule(folder, *, batch_size=4, kind=DetectionDataModule, source=None, **settings):
    mix = mixed_source(folder, **(PER_BATCH if source is None else source))
    return kind(mix, batch_size=batch_size, seed=5, **settings)


def sources_of(module, indices):
    """Return the position of the source of each training index."""
    return np.searchsorted(module.train_dataset.cumulative_sizes, indices, side="right").tolist()


class Recording(RecordingModel):
    """Records the images that each rank saw, and the sums of their pixels."""

    automatic_optimization = False

    def __init__(self):
        super().__init__(lambda batch: [target["image_id"] for target in batch[1]])
        self.seen["sums"] = []

    def training_step(self, batch, batch_idx):
        self.seen["train"].append([[target["image_id"], len(target["boxes"])] for target in batch[1]])
        self.seen["sums"].append([float(image.double().sum()) for image in batch_images(batch)])


def recorded(folder, world_size, **settings):
    module = datamodule(folder, batch_size=8 // world_size, drop_last=True, **TRANSFORMS, **settings)
    model = Recording()
    trainer(max_epochs=3, limit_val_batches=0).fit(model, datamodule=module)
    return model.seen


# -- what training reads -----------------------------------------------------------------------------------


def test_tables_are_joined_for_training_only(folder):
    module = datamodule(folder)
    module.setup()
    assert isinstance(module.train_dataset, ConcatDataset)
    assert len(module.train_dataset) == sum(table.num_images for table in module.tables("train")) == 18
    assert len(module.train_dataloader()) == 6
    # Without `__getitems__` the fetcher gives every sample its own key.
    assert not hasattr(module.train_dataset, "__getitems__")
    for stage in ("val", "test", "predict"):
        assert module.set_names(stage) == list(NAMES)
        assert len(getattr(module, f"{stage}_dataloader")()) == 3


def test_samples_and_paths_are_those_of_each_source(folder):
    module = datamodule(folder)
    module.setup("fit")
    tables = module.tables("train")
    paths = [table.image_path(row) for table in tables for row in range(table.num_images)]
    assert [module.train_dataset.sample_path(index) for index in range(18)] == paths
    assert module.train_dataset.sample_path(-1) == paths[-1]
    with pytest.raises(IndexError):
        module.train_dataset.sample_path(18)


@pytest.mark.parametrize("source", [PER_BATCH, {}], ids=["per batch", "in full"])
def test_every_batch_has_the_mix_of_the_source(folder, source):
    module = datamodule(folder, source=source)
    with module.train_dataloader() as loader:
        sampler = loader.sampler
        indices = sampler.order(seed=loader.seed, epoch=0)[:]
        assert len(loader) == len(indices) // 4 + (len(indices) % 4 > 0)
    if source:
        assert [sorted(sources_of(module, batch)) for batch in indices.reshape(-1, 4)] == [[0, 0, 1, 2]] * 6
    else:
        assert np.bincount(sources_of(module, indices)).tolist() == [6, 6, 6]


def test_validation_reads_what_each_source_alone_gives(folder):
    module = datamodule(folder)
    for name, loader in zip(NAMES, module.val_dataloader(), strict=True):
        alone = AutoSource(str(folder / name), cache_dir=str(folder / "cache"), progress=False)
        single = DetectionDataModule(alone, batch_size=4, seed=5)
        for (images, targets), (other_images, other_targets) in zip(loader, single.val_dataloader(), strict=True):
            assert all(map(torch.equal, images, other_images))
            assert [target["image_id"] for target in targets] == [target["image_id"] for target in other_targets]


WORKERS = {
    "two processes": {"num_workers": 2},
    # It unpickles the data set as a spawned process does, with half of the imports.
    "forkserver": {"workers": WorkerSettings(num_workers=1, multiprocessing_context="forkserver")},
    "threads": {"workers": WorkerSettings(num_workers=2, worker_method="thread")},
    "cached": {"cache": True},
}


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_do_not_depend_on_workers_or_caches(folder, tmp_path, workers):
    settings = dict(WORKERS[workers])
    if settings.get("cache"):
        settings["cache_dir"] = str(tmp_path)
    expected = list(datamodule(folder, **TRANSFORMS).train_dataloader())
    module = datamodule(folder, **TRANSFORMS, **settings)
    with module.train_dataloader() as loader:
        actual = list(loader)
    for (images, targets), (other_images, other_targets) in zip(actual, expected, strict=True):
        assert all(map(torch.equal, images, other_images))
        for target, other in zip(targets, other_targets, strict=True):
            assert torch.equal(target["boxes"], other["boxes"])
            assert torch.equal(target["labels"], other["labels"])


RANKS = {"per batch": {}, "epoch": {"source": {"ratio": {"plant": 3, "street": 1, "field": 2}, "num_samples": 24}}}


def record_all(folder):
    records = {name: recorded(folder, 2, **settings) for name, settings in RANKS.items()}
    (folder / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(records))


def test_two_ranks_train_on_the_same_pixels_as_one_process(folder):
    on_ranks(2, folder, record_all, folder)
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1))
    for name, settings in RANKS.items():
        alone = recorded(folder, 1, **settings)
        assert len(alone["train"]) > 5
        for key in ("train", "sums"):
            assert [a + b for a, b in zip(first[name][key], second[name][key], strict=True)] == alone[key]


@pytest.mark.parametrize("source", [PER_BATCH, {}], ids=["per batch", "in full"])
def test_run_resumes_in_the_middle_of_an_epoch(folder, tmp_path, source):
    def make(**workers):
        sampler = WeightedSamplerConfig()
        return datamodule(folder, source=source, train_sampler=sampler, **TRANSFORMS, **workers)

    save = Save(tmp_path, "on_train_batch_end")
    expected = fitted(Learner(), datamodule=make(), callbacks=[save])
    for num_seen, path in save.saved[1:4]:
        resumed = fitted(Learner(), datamodule=make(num_workers=1), ckpt_path=path)
        assert_same(resumed, expected, num_seen)


def test_state_of_another_mix_is_refused(folder):
    state = datamodule(folder).train_dataloader().state_dict()
    other = datamodule(folder, source={"ratio": {"plant": 1, "street": 2, "field": 1}, "ratio_per": "batch"})
    other.load_state_dict({"train": state})
    with pytest.raises(ValueError, match="fingerprint="):
        other.train_dataloader()
    balanced = datamodule(folder, train_sampler=ClassBalancedSamplerConfig())
    balanced.load_state_dict({"train": state})
    with pytest.raises(ValueError, match="fingerprint="):
        balanced.train_dataloader()


# -- samplers, batches -------------------------------------------------------------------------------------


def test_each_source_is_balanced_in_itself(folder):
    module = datamodule(folder, train_sampler=ClassBalancedSamplerConfig(num_samples=12))
    module.setup("fit")
    ((_, sampler),) = module.stage_data("train")
    assert [type(inner).__name__ for inner in sampler.sources] == ["ClassBalancedSampler"] * 3
    assert sampler.quotas.tolist() == [24, 12, 12]


@pytest.mark.parametrize(("size", "remedy"), [("batch_size", 8), ("train_batch_size", 8)])
def test_batch_size_that_does_not_fit_the_ratio_is_refused_with_the_next_one(folder, size, remedy):
    message = f"{size}=6 is not a multiple of 4, .*; pass {size}={remedy}"
    for use in (lambda module: module.setup("fit"), lambda module: module.summary()):
        with pytest.raises(ValueError, match=message):
            use(datamodule(folder, **{size: 6}))
    module = datamodule(folder, batch_size=4)
    module.setup("fit")
    module.batch_size = 6
    with pytest.raises(ValueError, match="batch_size=6 is not a multiple of 4"):
        module.train_dataloader()
    module.batch_size = 8
    assert module.train_dataloader().batch_size == 8


def test_sampler_of_a_subclass_needs_no_mix(folder):
    class Custom(DetectionDataModule):
        def stage_data(self, stage):
            ((dataset, _),) = super().stage_data(stage)
            return [(dataset, SequentialSampler(dataset))]

    assert len(list(datamodule(folder, kind=Custom, batch_size=4).train_dataloader())) == 5


def test_names_of_sets_are_clean_and_asked_once(tmp_path):
    stages = []

    class Named(DrawnSource):
        def set_names(self, stage):
            stages.append(stage)
            return ["night/rain", "../up", "night_rain"] if stage == "val" else []

    source = Named(val=[draw_set(tmp_path / f"{seed}", num_images=2, seed=seed) for seed in range(3)])
    module = DetectionDataModule(source)
    names = module.set_names("val")
    assert names == ["night_rain", "_up", "night_rain_2"]
    assert [summary.name for summary in module.summaries(["val"])] == [f"val/{name}" for name in names]
    assert stages.count("val") == 1


def test_reading_can_be_set(folder):
    module = datamodule(folder)
    module.reading = ImageReading(decode="fast")
    module.setup("fit")
    assert module.reading_arguments["reading"].decode == "fast"


def test_grouped_batches_and_samplers_of_single_sets_are_refused(folder):
    module = datamodule(folder, train_batching=AspectRatioBatching())
    with pytest.raises(ValueError, match=r"groups the images of one table, .* 3 tables; give PlainBatching\(\)"):
        module.setup("fit")
    with pytest.raises(ValueError, match=r"SequentialSampler would be shared by 3 sets .*give a .*SamplerConfig"):
        datamodule(folder, train_sampler=SequentialSampler(range(3))).setup("fit")
    datamodule(folder, train_batching=PlainBatching(), eval_batching=AspectRatioBatching()).setup("fit")


def test_empty_training_table_is_refused_by_name(tmp_path):
    table = draw_set(tmp_path / "a", num_images=4)
    source = MixedSource({"a": DrawnSource(train=table), "b": DrawnSource(train=table.select([]))})
    with pytest.raises(ValueError, match="train/b has no samples to mix; leave the source out of training"):
        DetectionDataModule(source).setup("fit")


def test_tables_of_any_source_are_joined_in_full(tmp_path):
    tables = [draw_set(tmp_path / f"{seed}", num_images=4 + seed, seed=seed) for seed in (0, 1)]
    module = DetectionDataModule(DrawnSource(train=tables, val=tables), batch_size=3, seed=0)
    module.setup("fit")
    assert len(module.train_dataset) == 9
    assert len(list(module.train_dataloader())) == 3
    assert module.set_names("val") == ["0", "1"]


@pytest.mark.parametrize("kind", [MultiTaskDataModule, ClassificationDataModule])
def test_other_tasks_mix_their_samples(folder, kind):
    settings = {"sample_unit": "object", "train_transforms": {"size": 32}}
    if kind is MultiTaskDataModule:
        settings = {"keypoints": False, "train_transforms": {"size": 32}}
    module = datamodule(folder, kind=kind, source={"ratio": dict.fromkeys(NAMES, 1), "num_samples": 12}, **settings)
    batches = list(module.train_dataloader())
    assert len(batches) == 3
    assert module.class_names == ("leaf", "stem", "car")


def test_objects_without_points_are_mixed_with_those_that_have_them(tmp_path):
    tables = [draw_set(tmp_path / "a", num_images=6), draw_set(tmp_path / "b", num_images=6, **WITHOUT_POINTS)]
    source = MixedSource({f"s{n}": DrawnSource(train=table) for n, table in enumerate(tables)})
    batch = MultiTaskDataModule(source, batch_size=12, seed=0).first_batch("train")
    masks = [target["visibility"].any().item() for target in batch_targets(batch) if len(target["boxes"])]
    assert True in masks
    assert False in masks


# -- faults ------------------------------------------------------------------------------------------------


def test_bad_sample_names_its_file_and_is_replaced_from_its_source(tmp_path):
    make_folders(tmp_path)
    path = next((tmp_path / "street" / "train2017").iterdir())
    path.write_bytes(b"no image")
    with pytest.raises(OSError, match=str(path)), datamodule(tmp_path, num_workers=1).train_dataloader() as loader:
        list(loader)
    module = datamodule(tmp_path, on_bad_sample="substitute")
    with module.train_dataloader() as loader:
        with pytest.warns(BadSamplesWarning, match="street"):
            batches = list(loader)
        records = loader.bad_samples
    assert {len(images) for images, _ in batches} == {4}
    assert {record.file for record in records} == {str(path)}
    assert all(sources_of(module, [record.index, record.replaced_by]) == [1, 1] for record in records)


def test_error_of_a_transform_names_the_file(folder):
    def broken(image, target):
        raise RuntimeError("no such transform")

    module = datamodule(folder, train_transforms=broken, val_transforms={}, test_transforms={}, predict_transforms={})
    with pytest.raises(RuntimeError, match="no such transform") as error:
        module.first_batch("train")
    assert any(str(folder) in note for note in error.value.__notes__)


# -- summaries and callbacks -------------------------------------------------------------------------------


def test_summaries_show_the_mix_of_each_source_and_of_all_together(folder):
    module = datamodule(folder, source={"ratio": {"plant": 2, "street": 1, "field": 1}}, batch_size=2)
    summaries = module.summaries()
    names = ["train", *(f"{stage}/{name}" for stage in ("train", "val", "test") for name in NAMES)]
    assert [summary.name for summary in summaries] == names
    together, *parts = summaries[:4]
    assert together.sampler == "MixedSourceSampler"
    assert together.num_images == sum(part.num_images for part in parts) == 18
    for field in ("class_counts", "image_counts", "num_empty", "problems"):
        assert np.array_equal(getattr(together, field), sum(getattr(part, field) for part in parts))
    # Each source is visited in proportion, and within a source every image equally often.
    delivered = sum(weight * part.class_counts for weight, part in zip((2, 1, 1), parts, strict=True))
    np.testing.assert_allclose(together.expected_mix, delivered / delivered.sum())
    np.testing.assert_allclose(parts[0].expected_mix, parts[0].natural_mix)
    assert [summary.share for summary in summaries] == [None, 0.5, 0.25, 0.25, *[None] * 6]
    assert [summary.unlabelled_classes for summary in summaries[:4]] == [(), (), ("stem",), ()]
    text = module.summary()
    assert "50.0% of the training samples" in text
    assert text.count("unlabelled: stem") == 3


def test_class_mix_monitor_counts_all_sources_together(folder):
    monitor = ClassMixMonitor()
    module = datamodule(folder)
    trainer(max_epochs=2, limit_val_batches=0, callbacks=[monitor]).fit(Recording(), datamodule=module)
    mix = monitor.mixes["class"]
    assert list(monitor.mixes) == ["class"]
    np.testing.assert_allclose(mix.expected, module.summaries(["train"])[0].expected_mix)
    np.testing.assert_allclose(mix.arrived, mix.expected, atol=0.1)


def test_new_class_weights_reach_every_source(folder):
    weights = iter([[1.0, 0.0, 0.0], None])
    callback = ReweightClasses(lambda trainer, module: next(weights), empty_weight=0.0)
    settings = {"ratio": {"plant": 1, "street": 1, "field": 1}}
    module = datamodule(folder, source=settings, train_sampler=WeightedSamplerConfig(num_samples=8))
    fit = trainer(max_epochs=2, limit_val_batches=0, callbacks=[callback])
    fit.fit(Recording(), datamodule=module)
    sampler = fit.train_dataloader.sampler
    assert isinstance(sampler, MixedSourceSampler)
    assert sampler.revision == 6
    for table, inner in zip(module.tables("train"), sampler.sources, strict=True):
        assert isinstance(inner, WeightedRandomSampler)
        drawn = np.flatnonzero(inner.weights.numpy())
        assert all((table.labels[table.objects(int(row))] == 0).any() for row in drawn)


def test_callback_refuses_a_mix_without_weights_by_name(folder):
    callback = ReweightClasses(lambda trainer, module: None)
    with pytest.raises(ValueError, match=r"ReweightClasses expected .* got a RandomSampler; give it train_sampler="):
        trainer(max_epochs=1, callbacks=[callback]).fit(Recording(), datamodule=datamodule(folder))


def test_copies_between_training_sources_are_not_reported(tmp_path):
    make_folders(tmp_path)
    shared = next((tmp_path / "street" / "train2017").iterdir()).read_bytes()
    next((tmp_path / "field" / "images" / "train").iterdir()).write_bytes(shared)
    assert "byte-identical" not in datamodule(tmp_path).summary()
    next((tmp_path / "field" / "images" / "val").iterdir()).write_bytes(shared)
    assert "images of val/field are byte-identical copies of images of train," in datamodule(tmp_path).summary()


def test_batch_of_a_mix_is_drawn(folder, tmp_path):
    path = Path(tmp_path, "batch.png")
    datamodule(folder).plot_batch("train", path=path)
    assert path.stat().st_size > 0


def test_tiles_of_several_sources_are_mixed(folder):
    module = datamodule(folder, tiling={"size": 32, "overlap": 0.0, "stages": ["train"]})
    module.setup("fit")
    num_tiles = [table.num_images for table in module.tables("train")]
    assert all(n > table.num_images for n, table in zip(num_tiles, module.image_tables("train"), strict=True))
    assert len(module.train_dataset) == sum(num_tiles)
    assert [table.unlabelled_classes for table in module.tables("train")] == [(), ("stem",), ()]
    assert {tuple(image.shape) for images, _ in module.train_dataloader() for image in images} == {(3, 32, 32)}
    together, *parts = module.summaries(["train"])
    assert together.num_images == sum(part.num_images for part in parts) == sum(num_tiles)
    assert together.num_tiled_images == 18
