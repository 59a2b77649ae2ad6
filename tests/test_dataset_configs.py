"""The README's commands on sets of the layouts that they name: composed, built, a step of training and a test."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest
import yaml
from hydra.utils import instantiate
from lightning.pytorch import Trainer

from lit_loader.configs import build_datamodule, compose_config
from lit_loader.formats import write_annotations
from lit_loader.recipes import model_kwargs_from_datamodule
from tests.drawn_set import SIZE, draw_set

README = (Path(__file__).parents[1] / "README.md").read_text()
COMMANDS = {
    re.search(r"dataset=(\w+)", words)[1]: shlex.split(words)
    for words in re.findall(r"^\S+ examples/train\.py (dataset=[^#\n]*)", README, re.MULTILINE)
}
SMALL = [
    *("model.channels=8", "model.head_channels=32", "workers.num_workers=0"),
    *("dataset.progress=false", "trainer.max_steps=1", "trainer.limit_val_batches=1"),
]

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


def split_in_two(tmp_path):
    """Return a drawn table without points, cut into training and validation."""
    without = {"keypoints": None, "visibility": None, "keypoint_names": (), "flip_pairs": ()}
    table = draw_set(tmp_path / "drawn", num_images=8, objects=1, **without)
    return {"train": table.select(range(6)), "val": table.select(range(6, 8))}


def make_coco(root, tables):
    for split, table in tables.items():
        write_annotations("coco", table, root, f"annotations/instances_{split}2017.json", allow_loss=True)
        copy_images(table, root / f"{split}2017")


def make_yolo(root, tables):
    for split, table in tables.items():
        copy_images(table, root / "images" / split)
        (root / "labels" / split).mkdir(parents=True)
        for path, label, box in zip(table.image_paths, table.labels, table.boxes, strict=True):
            (left, top), (right, bottom) = box[:2] / SIZE, box[2:] / SIZE
            row = (label, (left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
            (root / "labels" / split / path).with_suffix(".txt").write_text(" ".join(map(str, row)))
    names = dict(enumerate(table.class_names))
    data = {"path": "../datasets/set", "train": "images/train", "val": "images/val", "names": names}
    (root / "data.yaml").write_text(yaml.safe_dump(data))


def make_voc(root, tables):
    """As clusters have it: the images are somewhere else, behind a link."""
    for split, table in tables.items():
        write_annotations("voc", table, root, split, allow_loss=True)
    (root / "JPEGImages").symlink_to(Path(table.root))


def make_csv(root, tables):
    for split, table in tables.items():
        copy_images(table, root / split)
        with (root / f"{split}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "label", "xmin", "ymin", "xmax", "ymax"])
            for path, label, box in zip(table.image_paths, table.labels, table.boxes, strict=True):
                rows.writerow([f"{split}/{path}", table.class_names[label], *map(float, box)])


def make_image_folder(root, tables):
    for split, table in tables.items():
        for name in table.class_names:
            (root / split / name).mkdir(parents=True)
        for path, label in zip(table.image_paths, table.labels, strict=True):
            copy = root / split / table.class_names[label] / path
            copy.write_bytes(Path(table.root, path).read_bytes())


def copy_images(table, folder):
    folder.mkdir(parents=True)
    for path in table.image_paths:
        (folder / path).write_bytes(Path(table.root, path).read_bytes())


MAKERS = {
    "coco": make_coco,
    "yolo": make_yolo,
    "voc": make_voc,
    "csv": make_csv,
    "image_folder": make_image_folder,
}


def test_the_readme_has_a_command_for_each_layout():
    assert COMMANDS.keys() == MAKERS.keys()


@pytest.mark.parametrize("layout", MAKERS)
def test_the_command_of_the_readme_trains_and_tests_on_its_layout(layout, tmp_path):
    """With fewer images than a batch, and drawn as they are: nothing has to be set for a small set."""
    root = tmp_path / "set"
    root.mkdir()
    MAKERS[layout](root, split_in_two(tmp_path))
    given = [word for word in COMMANDS[layout] if not word.startswith("dataset.root=")]
    sizes = [] if layout == "image_folder" else ["model.min_size=64", "model.max_size=96"]
    overrides = [f"dataset.root={root}", f"dataset.cache_dir={tmp_path / 'cache'}", *SMALL, *sizes]
    cfg = compose_config(overrides=[*given, *overrides])
    datamodule = build_datamodule(cfg)
    datamodule.prepare_data()
    assert [len(datamodule.tables(stage)[0].image_paths) for stage in ("train", "val", "test")] == [6, 2, 2]
    assert set(datamodule.class_names) >= {"common", "rare"}
    model = instantiate(cfg.model, **model_kwargs_from_datamodule(datamodule), _convert_="all")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer: Trainer = instantiate(
        cfg.trainer, **quiet, enable_checkpointing=False, default_root_dir=tmp_path
    )
    trainer.fit(model, datamodule=datamodule)
    trainer.test(model, datamodule=datamodule, verbose=False)
    assert trainer.global_step == 1
    assert type(datamodule.train_dataloader().sampler).__name__ == "RandomSampler"
