"""Data modules with a decoded cache: made when the stages are known, within one budget, the same batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lit_loader.datamodules import (
    ClassificationDataModule,
    DetectionDataModule,
    LandmarkDataModule,
    MultiTaskDataModule,
)
from lit_loader.errors import CacheError
from lit_loader.images.decoded_cache.pixel_file import pixels_start
from tests.support.decoded_images import files_in
from tests.support.drawn_set import SIZE, DrawnSource, drawn_source
from tests.support.extras import needs
from tests.support.tiny_trainer import Tiny, trainer_of
from tests.support.toys import plain

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
TASKS = {
    "detection": (DetectionDataModule, {"train_transforms": {"photometric": 0.5, "iou_crop": 0.5}}),
    "landmarks": (LandmarkDataModule, {"train_transforms": {"size": 24, "rotation": 20, "shift": 0.1}}),
    "classification": (ClassificationDataModule, {"sample_unit": "object"}),
    "multi-task": (MultiTaskDataModule, {}),
}
CONF = Path(__file__).parents[2] / "conf"
BYTES = {count: pixels_start(count) + count * 3 * SIZE[0] * SIZE[1] for count in (8, 24)}


@pytest.fixture
def source(tmp_path):
    shapes_source = drawn_source(tmp_path / "set")
    shapes_source.cache_dir = str(tmp_path / "cache")
    shapes_source.progress = False
    return shapes_source


@pytest.mark.parametrize("task", TASKS)
def test_every_task_gets_the_same_batches_from_a_cache(source, decoded_paths, task):
    def batches(**settings):
        module, task_settings = TASKS[task]
        datamodule = module(source, batch_size=4, seed=3, **task_settings, **settings)
        datamodule.prepare_data()
        datamodule.setup("fit")
        return [plain(batch) for _ in range(2) for batch in datamodule.train_dataloader()]

    expected = batches()
    decoded_paths.clear()
    cached_batches = batches(cache=True)
    assert cached_batches == expected
    assert len(decoded_paths) == len(set(decoded_paths))


def test_a_run_decodes_the_images_of_its_stages_once(tmp_path, source, decoded_paths):
    datamodule = DetectionDataModule(source, batch_size=4, cache=True)
    trainer = trainer_of(tmp_path, max_epochs=2)
    trainer.fit(Tiny(), datamodule=datamodule)
    assert sorted(set(decoded_paths)) == sorted(decoded_paths)
    assert {path.split("/")[0] for path in decoded_paths} == {"train", "val"}
    trainer.test(Tiny(), datamodule=datamodule)
    assert len(decoded_paths) == len(set(decoded_paths)) == 24 + 8 + 8
    assert len(files_in(Path(source.cache_dir, "decoded"))) == 3
    DetectionDataModule(source, batch_size=4, cache=True).setup()
    assert len(decoded_paths) == 40  # a later run finds them


def test_without_a_trainer_the_images_of_all_stages_are_prepared(source, decoded_paths):
    DetectionDataModule(source, cache=True).prepare_data()
    assert len(decoded_paths) == 24 + 8 + 8  # the images to predict on are those to test on


def test_a_folder_of_its_own_wins_over_the_sources(source, tmp_path):
    own_folder = tmp_path / "own"
    DetectionDataModule(source, cache=True, cache_dir=own_folder).setup("validate")
    assert files_in(Path(source.cache_dir, "decoded")) == []
    assert len(list((own_folder / "decoded").glob("*.pixels"))) == 1
    DetectionDataModule(source, cache_dir=own_folder).setup()  # without `cache` it has no effect
    assert len(list((own_folder / "decoded").glob("*.pixels"))) == 1


def test_the_sets_of_a_data_module_share_one_budget(source):
    total = BYTES[24] + 2 * BYTES[8]
    short = DetectionDataModule(source, cache=True, cache_budget=total - 1)
    with pytest.raises(CacheError, match=r"8 decoded images need 72\.2 KiB"):
        short.setup()
    assert len(files_in(Path(source.cache_dir, "decoded"))) == 2  # those that fitted
    for path in (Path(source.cache_dir) / "decoded").glob("*.pixels"):
        path.unlink()
    enough = DetectionDataModule(source, cache=True, cache_budget=total)
    enough.setup()
    assert sum(enough._cached_bytes.values()) == total


def test_a_smaller_size_reaches_the_batches(source):
    datamodule = DetectionDataModule(source, cache=True, cache_size=32, val_transforms={"hflip": 0.0})
    datamodule.setup("validate")
    images, targets = next(iter(datamodule.val_dataloader()))
    assert {tuple(image.shape) for image in images} == {(3, 24, 32)}
    full_size = DetectionDataModule(source, val_transforms={"hflip": 0.0})
    full_size.setup("validate")
    _, unshrunk = next(iter(full_size.val_dataloader()))
    for target, other in zip(targets, unshrunk, strict=True):
        assert torch.equal(target["boxes"] * 2, other["boxes"])


@pytest.mark.parametrize(
    "settings", [{"cache": "ram"}, {"cache_dir": 5}, {"cache_size": 0}, {"cache": True, "cache_budget": "much"}]
)
def test_settings_are_checked_at_once(settings):
    with pytest.raises((ValueError, TypeError), match=f"{list(settings)[-1]}="):
        DetectionDataModule(DrawnSource(), **settings)


@needs("hydra")
def test_a_config_has_the_same_keys():
    from hydra import compose, initialize_config_dir

    from lit_loader.app.composition import ConfigError, validate

    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        words = ["dataset=shapes", "datamodule.cache=true", "datamodule.cache_budget=8 GiB"]
        validate(compose("train", overrides=[*words, "datamodule.cache_dir=/dev/shm/own"]))
        wrong = compose("train", overrides=["dataset=shapes", "datamodule.cache=ram"])
    with pytest.raises(ConfigError, match=r"cache='ram' should be bool"):
        validate(wrong)
