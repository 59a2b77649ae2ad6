"""What a module exports is what it says, sorted; importing the package starts nothing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import lit_loader
from tests.support.extras import needs

PACKAGE = Path(lit_loader.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__main__"
)

EXPORTS = {
    "AnnotationTable",
    "AspectRatioBatching",
    "AutoSource",
    "BadSample",
    "BadSampleReport",
    "CacheSettings",
    "ClassAwareSampler",
    "ClassAwareSamplerConfig",
    "ClassBalancedSampler",
    "ClassBalancedSamplerConfig",
    "ClassMixMonitor",
    "ClassificationBatch",
    "ClassificationCollate",
    "ClassificationDataModule",
    "ClassificationDataset",
    "DataLoader",
    "DataWaitMonitor",
    "DatasetsDataModule",
    "DetectionCollate",
    "DetectionDataModule",
    "DetectionDataset",
    "EffectiveNumberSamplerConfig",
    "FormatSource",
    "GroupedSampler",
    "ImageReading",
    "KeypointSchema",
    "LandmarkBatch",
    "LandmarkCollate",
    "LandmarkDataModule",
    "LandmarkDataset",
    "MixedSourceSampler",
    "MultiTaskBatch",
    "MultiTaskCollate",
    "MultiTaskDataModule",
    "OrderSampler",
    "PaddedBatch",
    "PlainBatching",
    "RandomSampler",
    "RandomSamplerConfig",
    "ReadOptions",
    "ReadPolicy",
    "Reader",
    "RepeatFactorSampler",
    "RepeatFactorSamplerConfig",
    "ResumeLoaders",
    "ReweightClasses",
    "SamplerConfig",
    "SequentialSampler",
    "SequentialSamplerConfig",
    "ShapesSource",
    "SizeBatching",
    "SubsetRandomSampler",
    "TableDataModule",
    "TableSource",
    "VocSource",
    "WeightedRandomSampler",
    "WeightedSamplerConfig",
    "WorkerSettings",
    "Writer",
    "append_bad_samples",
    "class_weights",
    "classification_transforms",
    "concatenate",
    "default_collate",
    "default_convert",
    "detection_collate",
    "detection_transforms",
    "draw_boxes",
    "draw_labels",
    "draw_points",
    "get_worker_info",
    "image_weights",
    "is_duplicate",
    "keypoint_schema",
    "landmark_transforms",
    "read_annotations",
    "readers",
    "recall_weights",
    "register_format",
    "sample_rng",
    "open_source",
    "start_forkserver",
    "write_annotations",
    "writers",
}


@pytest.mark.parametrize("name", MODULES)
def test_all_is_sorted_and_true(name):
    module = importlib.import_module(name)
    if not hasattr(module, "__path__") and not hasattr(module, "__all__"):
        return  # a private module, imported by its own package or by lit_loader alone
    exported = module.__all__
    assert list(exported) == sorted(exported)
    for item in exported:
        assert hasattr(module, item)


def test_type_checkers_see_the_names_that_the_package_exports():
    """The stub repeats the table of `__init__.py`, one ``from MODULE import NAME as NAME`` per name."""
    stub = ast.parse(Path(lit_loader.__file__).with_suffix(".pyi").read_text())
    modules = {
        alias.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert modules == lit_loader._MODULE_BY_NAME


def test_the_package_exports_what_people_type_first():
    assert set(lit_loader.__all__) == EXPORTS
    assert set(dir(lit_loader)) >= EXPORTS
    with pytest.raises(AttributeError, match="nope"):
        _ = lit_loader.nope


@pytest.mark.parametrize("name", sorted(EXPORTS))
def test_an_export_is_what_its_module_exports(name):
    home = importlib.import_module(lit_loader._MODULE_BY_NAME[name])
    assert name in home.__all__
    assert getattr(lit_loader, name) is getattr(home, name)


def test_the_loader_has_imported_what_its_workers_need():
    """Else each forked worker imports it anew, and in a worker thread an import may lose a Ctrl-C."""
    code = (
        "import sys, threading\n"
        "from lit_loader import DataLoader\n"
        "found = []\n"
        "def hook(event, args):\n"
        "    if event == 'import' and threading.current_thread() is not threading.main_thread():\n"
        "        found.append(args[0])\n"
        "sys.addaudithook(hook)\n"
        "list(DataLoader(range(8), batch_size=2, seed=1, num_workers=2, worker_method='thread'))\n"
        "assert found == [], found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@needs("hydra")
def test_importing_the_package_imports_no_torch_and_starts_nothing():
    code = (
        "import sys, threading, lit_loader, lit_loader.app.composition;"
        "assert not {'torch', 'lightning'} & set(sys.modules), 'heavy';"
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
