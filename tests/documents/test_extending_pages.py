"""The parts that docs/extending shows how to write, and the configs that name them, work."""

from __future__ import annotations

import importlib
import re
import sys

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from torchvision import tv_tensors

from lit_loader import DetectionDataModule, FormatSource, read_annotations
from lit_loader.annotations.formats import registry
from lit_loader.app.composition import compose_config
from lit_loader.datasets import ShapesSource
from lit_loader.errors import AnnotationError
from lit_loader.recipes import ClassificationTask, DetectionTask, model_kwargs_from_datamodule
from tests.support.cached_configs import cached_configs  # noqa: F401 # a fixture
from tests.support.documents import PAGES, ROOT, blocks
from tests.support.text_sets import write_image

TEXT = "\n".join(text for page, text in PAGES.items() if page.startswith("extending/"))
MODULES = {code.split()[1].removesuffix(".py"): code for code in blocks(TEXT, "python") if code.startswith("# my_")}


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """Return a function that writes a module of a page and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})

    def load(name):
        (tmp_path / f"{name}.py").write_text(MODULES[name])
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("shapes"))
    source = ShapesSource(
        num_images={"train": 12, "val": 4}, class_shares=(0.6, 0.3, 0.1), cache_dir=folder, progress=False
    )
    source.prepare()
    return source


@pytest.fixture
def trainer():
    return Trainer(fast_dev_run=True, accelerator="cpu", logger=False, enable_progress_bar=False)


def test_reader_of_the_page_reads_boxes_and_names_lines(user_module, tmp_path):
    user_module("my_boxes")
    write_image(tmp_path / "a.png")
    (tmp_path / "train.txt").write_text("a.png,cat,1,2,8,6\n")
    source = FormatSource(
        format="boxes", root=str(tmp_path), train="train.txt", options={"separator": ","}, cache_dir=str(tmp_path / "c")
    )
    source.prepare()
    (table,) = source.tables("train")
    assert table.boxes.tolist() == [[1, 2, 9, 8]]
    (tmp_path / "wrong.txt").write_text("a.png;cat;1;2;8;6\na.png;cat;1;2;8\n")
    with pytest.raises(AnnotationError, match=r"wrong\.txt:2: expected image, class and 4 numbers"):
        read_annotations("boxes", tmp_path, "wrong.txt", use_cache=False)


def test_reader_of_a_folder_finds_image_of_each_file(user_module, tmp_path):
    user_module("my_folder")
    (tmp_path / "labels").mkdir()
    for name in ("a", "b"):
        write_image(tmp_path / f"labels/{name}.png")
        (tmp_path / f"labels/{name}.box").write_text("dog 1 1 5 6\ncat 1 1 4\n")
    table = read_annotations("box_files", tmp_path, "labels", use_cache=False, policy={"malformed": "drop"})
    assert list(table.image_paths) == ["labels/a.png", "labels/b.png"]
    assert table.num_objects == table.report.count("malformed", "drop") == 2


def test_sampler_config_draws_crowded_images_more_often(user_module, source):
    (table,) = source.tables("train")
    sampler = user_module("my_samplers").CrowdedMoreOftenConfig(power=1.0).make_sampler(table)
    counts = 1 + np.diff(table.offsets)
    assert np.allclose(sampler.expected_visits(), len(counts) * counts / counts.sum())


def test_curriculum_shows_easy_images_first_and_depends_on_epoch(user_module):
    sampler_class = user_module("my_curriculum").CurriculumSampler
    sampler = sampler_class(np.arange(100)[::-1], block=10)
    orders = [np.asarray(sampler.order(seed=0, epoch=epoch)) for epoch in (0, 1, 0)]
    assert sorted(orders[0]) == list(range(100))
    assert set(orders[0][:10]) == set(range(90, 100))
    assert np.array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])
    assert sampler.fingerprint() != sampler_class(np.arange(100)[::-1], block=20).fingerprint()


def test_loop_over_the_curriculum_prints_its_output(user_module, capsys):
    user_module("my_curriculum")
    user_module("my_epoch")
    assert capsys.readouterr().out in blocks(TEXT, "text")


def test_transform_moves_boxes_with_pixels(user_module):
    shear = user_module("my_transforms").RandomShear(degrees=40)
    torch.manual_seed(0)
    image = tv_tensors.Image(torch.zeros(3, 60, 60, dtype=torch.uint8))
    image[:, 5:15, 20:40] = 255
    boxes = tv_tensors.BoundingBoxes([[20.0, 5, 40, 15]], format="XYXY", canvas_size=(60, 60))
    image, target = shear(image, {"boxes": boxes})
    _, columns = torch.nonzero(image[0], as_tuple=True)
    x_min, x_max = target["boxes"][0, [0, 2]].tolist()
    assert x_min != 20
    assert abs(columns.min() - x_min) <= 2
    assert abs(columns.max() + 1 - x_max) <= 2


def test_batching_groups_by_folder(user_module, source):
    batching = user_module("my_batching").FolderBatching()
    datamodule = DetectionDataModule(source, batch_size=4, train_batching=batching, seed=0)
    assert len(datamodule.first_batch("train")[0]) == 4


def test_models_of_the_page_train(user_module, source, trainer):
    my_models = user_module("my_models")
    assert ClassificationTask(my_models.small_classifier, class_names=["a", "b"]).model(torch.zeros(2, 3, 32, 32)).shape
    assert DetectionTask(my_models.small_fasterrcnn, class_names=["a"]).model.roi_heads
    datamodule = DetectionDataModule(source, batch_size=2, num_workers=0)
    detector = user_module("my_detector").OneBoxDetector
    task = DetectionTask(detector, class_names=datamodule_names(datamodule))
    trainer.fit(task, datamodule=datamodule)
    assert task.val_scores.map_50 >= 0


def datamodule_names(datamodule):
    datamodule.prepare_data()
    return datamodule.class_names


def test_task_of_the_page_trains_and_is_scored(user_module, source, trainer, tmp_path):
    task_class = user_module("my_counting").CountingTask
    datamodule = DetectionDataModule(source, batch_size=4, num_workers=0, images="stack")
    datamodule.prepare_data()
    task = task_class(width=8, **model_kwargs_from_datamodule(datamodule))
    trainer.fit(task, datamodule=datamodule)
    assert trainer.callback_metrics["val/mae"] == pytest.approx(task.val_scores.mae)
    trainer.save_checkpoint(tmp_path / "task.ckpt")
    assert task_class.load_from_checkpoint(tmp_path / "task.ckpt", weights_only=True).hparams.width == 8


def test_rows_of_a_database_are_read(user_module, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    user_module("my_database")
    user_module("my_training")
    assert "torch.Size([3, 48, 64])" in capsys.readouterr().out


def test_configs_of_the_pages_compose(user_module, tmp_path):
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text(MODULES[name])
    choices = set()
    for text in blocks(TEXT, "yaml"):
        group, option = re.match(r"# conf/(\w+)/(\w+)\.yaml", text).groups()
        (tmp_path / "conf" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / group / f"{option}.yaml").write_text(text)
        choices.add(f"{group}={option}")
    shared = ["sampler=mine", "batching=by_folder"]
    models = ["model=mine", "model=counting"]
    assert choices == {*shared, *models}
    for model in models:
        overrides = ["dataset=shapes", f"hydra.searchpath=[file://{tmp_path / 'conf'}]", *shared, model]
        assert compose_config(ROOT / "conf", "train", overrides)


def test_every_module_of_the_pages_is_tested():
    tested = {"my_boxes", "my_folder", "my_samplers", "my_curriculum", "my_epoch", "my_transforms", "my_batching"}
    assert set(MODULES) == tested | {"my_models", "my_detector", "my_counting", "my_database", "my_training"}
