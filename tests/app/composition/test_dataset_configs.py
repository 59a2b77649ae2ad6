"""Documented commands train and test on sets of their layouts."""

from __future__ import annotations

import re

import pytest
from hydra.utils import instantiate
from lightning.pytorch import Trainer

from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.recipes import model_kwargs_from_datamodule
from tests.support.any_table import assert_same_table
from tests.support.documents import PAGES, commands
from tests.support.made_sets import MAKERS, split_in_two

# The rows of the table of formats, and the commands.
ROWS = re.findall(r"^\|[^|]*\| `(dataset=\w+ dataset\.root.*?)` \|$", PAGES["training/first-run"], re.MULTILINE)
COMMANDS = {
    words[0].removeprefix("dataset="): words
    for words in (*commands(PAGES["training/first-run"], "lit-loader train"), *map(str.split, ROWS))
    if words[0].startswith("dataset=")
}
QUICK = ["workers=inline", "dataset.progress=false", "trainer.max_steps=1", "trainer.limit_val_batches=1"]

pytestmark = pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")


def small(layout):
    if layout == "image_folder":
        return ["model.weights=null", "datamodule.train_transforms.size=32"]
    sizes = ("channels=8", "head_channels=32", "min_size=64", "max_size=96")
    return ["model=fcos_small", *(f"model.model.{size}" for size in sizes)]


def test_every_layout_has_a_documented_command():
    assert COMMANDS.keys() == {*MAKERS, "auto"}


@pytest.mark.parametrize("layout", MAKERS)
def test_auto_reads_the_tables_of_the_documented_command(layout, tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    MAKERS[layout](root, split_in_two(tmp_path))
    words = [f"dataset.root={root}", f"dataset.cache_dir={tmp_path / 'cache'}", "dataset.progress=false"]
    documented = [word for word in COMMANDS[layout] if not word.startswith("dataset.root=")]
    auto = [word for word in documented if not word.startswith("dataset")]
    named, automatic = (compose_config(overrides=[*choice, *words]) for choice in (documented, ["dataset=auto", *auto]))
    for stage in ("train", "val", "test"):
        expected, actual = (instantiate(cfg.dataset, _convert_="all").tables(stage)[0] for cfg in (named, automatic))
        assert_same_table(actual, expected)


@pytest.mark.parametrize("layout", MAKERS)
def test_documented_command_trains_and_tests_on_its_layout(layout, tmp_path):
    # The set has fewer images than a batch, and needs no other settings.
    root = tmp_path / "set"
    root.mkdir()
    MAKERS[layout](root, split_in_two(tmp_path))
    documented = [word for word in COMMANDS[layout] if not word.startswith("dataset.root=")]
    overrides = [f"dataset.root={root}", f"dataset.cache_dir={tmp_path / 'cache'}", *QUICK, *small(layout)]
    cfg = compose_config(overrides=[*documented, *overrides])
    datamodule = build_datamodule(cfg)
    datamodule.prepare_data()
    assert [len(datamodule.tables(stage)[0].image_paths) for stage in ("train", "val", "test")] == [6, 2, 2]
    assert set(datamodule.class_names) >= {"common", "rare"}
    model = instantiate(cfg.model, **model_kwargs_from_datamodule(datamodule), _convert_="all")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer: Trainer = instantiate(cfg.trainer, **quiet, enable_checkpointing=False, default_root_dir=tmp_path)
    trainer.fit(model, datamodule=datamodule)
    trainer.test(model, datamodule=datamodule, verbose=False)
    assert trainer.global_step == 1
    sampler = "ClassBalancedSampler" if layout == "image_folder" else "RandomSampler"
    assert type(datamodule.train_dataloader().sampler).__name__ == sampler
