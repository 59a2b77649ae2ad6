"""A dataset, a sampler and a transform added from outside of the package need few lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

from lit_loader.annotations.formats import write_annotations
from lit_loader.app.composition import compose_config
from tests.support.drawn_set import draw_set

HERE = Path(__file__).parent


@pytest.fixture
def orchard(tmp_path):
    """A COCO set with 0, 1, 2, 3, 0, 1 objects per image, and a function that composes its config."""
    table = draw_set(tmp_path / "pictures", num_images=8)
    for name, images in (("summer", range(6)), ("autumn", range(6, 8))):
        write_annotations("coco", table.select(images), tmp_path, f"{name}.json", allow_loss=True)
    overrides = [f"dataset.root={tmp_path}", f"dataset.cache_dir={tmp_path}", "dataset.progress=false"]
    return table, lambda *words: compose_config(HERE / "conf", "orchard", [*overrides, *words])


def lines_of(path, part=None):
    """Return the number of lines of a file, or of its part below a title, without blank lines and comments."""
    text = (HERE / path).read_text()
    if part is not None:
        text = text.partition(f"# -- {part} -")[2].partition("# -- ")[0].partition("\n")[2]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def test_dataset_is_one_yaml_of_six_lines(orchard):
    table, composed = orchard
    datamodule = instantiate(composed().datamodule, _convert_="all")
    num_images = [datamodule.tables(stage)[0].num_images for stage in ("train", "val", "test")]
    assert (num_images, datamodule.class_names) == ([6, 2, 2], table.class_names)
    assert lines_of("conf/dataset/orchard.yaml") == 6


def test_sampler_is_a_class_of_twenty_lines_and_a_yaml_of_two(orchard):
    _, composed = orchard
    for words, counts in (([], [3, 2, 1, 1]), (["sampler.descending=false"], [0, 0, 1, 1])):
        cfg = composed("datamodule.batch_size=4", *words)
        datamodule = instantiate(cfg.datamodule, _convert_="all")
        _, targets = datamodule.first_batch("train")
        assert [len(target["boxes"]) for target in targets] == counts
        assert "CrowdedFirst" in datamodule.summary()
    assert lines_of("parts.py", "a sampler") <= 22
    assert lines_of("conf/sampler/crowded_first.yaml") == 2


def test_transform_is_a_module_of_four_lines_and_a_key(orchard):
    _, composed = orchard
    images, _ = instantiate(composed().datamodule, _convert_="all").first_batch("val")
    assert images[0].dtype == torch.float32
    assert images[0].median() == pytest.approx(1 - 150 / 255)  # the background of the drawn images
    assert lines_of("parts.py", "a transform") <= 4
    assert lines_of("conf/datamodule/inverted.yaml") == 6
