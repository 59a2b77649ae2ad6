"""The base install: what works without any extra, and the error of a feature whose extra is absent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lit_loader.foundation.extras import require


def test_require_returns_the_module():
    assert require("json.decoder", "plot") is sys.modules["json.decoder"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_an_absent_module_names_the_command(module):
    with pytest.raises(ImportError, match=r"no_such_package is not .*pip install 'lit-loader\[plot\]'"):
        require(module, "plot")


def test_a_module_that_lacks_another_is_not_blamed_on_the_extra(tmp_path, monkeypatch):
    (tmp_path / "broken_plotting.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'"):
        require("broken_plotting", "plot")


# torchmetrics is not blocked: lightning itself imports it.
WITHOUT_EXTRAS = """
import importlib.metadata
import sys

ABSENT = {"faster_coco_eval", "hydra", "matplotlib", "omegaconf", "pylibjxl", "simplejpeg"}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def from_name(name):
    if name.lower().replace("-", "_").removesuffix("_core") in ABSENT:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)


sys.meta_path.insert(0, Absent())
found = importlib.metadata.Distribution.from_name
importlib.metadata.Distribution.from_name = from_name
"""
BASE_INSTALL = """
import contextlib
import importlib
import io

import torch

import lit_loader
import lit_loader.recipes
from lit_loader.app.commands import main
from lit_loader.datasets import draw_shapes

for name in lit_loader.__all__:
    getattr(lit_loader, name)
source = lit_loader.ShapesSource(num_images={"train": 4}, image_size=32, cache_dir=FOLDER, progress=False)
modules = (
    lit_loader.ClassificationDataModule,
    lit_loader.DetectionDataModule,
    lit_loader.LandmarkDataModule,
    lit_loader.MultiTaskDataModule,
)
for module in modules:
    several = {"multi_label": True} if module is lit_loader.ClassificationDataModule else {}
    datamodule = module(source, batch_size=2, **several)
    datamodule.prepare_data()
    datamodule.setup("fit")
    assert list(datamodule.train_dataloader()), module
batches = lit_loader.DatasetsDataModule(train_dataset=range(6), batch_size=2).train_dataloader()
assert len(list(batches)) == 3
root = draw_shapes(FOLDER + "/set", num_images={"train": 3}, image_size=32, progress=False)
assert lit_loader.read_annotations("voc", root, "train", progress=False).num_images == 3
assert main(["index", "voc", str(root), "train"]) in (None, 0)
measuring = (["tune"], ["tune", "--config-dir", FOLDER], ["profile"], ["show", "--batches"])
for words in (*measuring, ["train", "experiment=shapes"], ["eval"], ["predict"]):
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        assert main(words) == 1
    assert "pip install 'lit-loader[hydra]'" in errors.getvalue(), errors.getvalue()
for extra, feature in (
    ("hydra", lambda: importlib.import_module("lit_loader.app.composition")),
    ("plot", lambda: datamodule.plot_batch()),
    ("plot", lambda: lit_loader.draw_labels([torch.zeros(3, 4, 4)], ["a"])),
    ("recipes", lambda: lit_loader.recipes.DetectionTask("fcos_small", class_names=["a"])),
    ("hydra", lambda: importlib.import_module("lit_loader.app.composition")),
):
    try:
        feature()
    except ImportError as error:
        assert f"pip install 'lit-loader[{extra}]'" in str(error), error
    else:
        raise AssertionError(extra)
"""


def test_the_base_install_reads_loads_and_indexes_and_other_features_name_their_extra(tmp_path):
    code = f"{WITHOUT_EXTRAS}\nFOLDER = {str(tmp_path)!r}\n"
    result = subprocess.run([sys.executable, "-c", code + BASE_INSTALL], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
