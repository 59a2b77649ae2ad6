"""The wheel without extras: the loader and the data modules work, and other features name their extra."""

from __future__ import annotations

import textwrap

import pytest

EVERY_NAME = """
    import importlib.metadata, sys
    import lit_loader

    for name in lit_loader.__all__:
        getattr(lit_loader, name)
    assert importlib.metadata.version("lit-loader") == lit_loader.__version__
    assert lit_loader.__file__.startswith(sys.prefix), lit_loader.__file__
"""
LOADER = """
    import torch
    from torch.utils.data import TensorDataset

    from lit_loader import DataLoader

    def batches(**workers):
        dataset = TensorDataset(torch.arange(20.0))
        loader = DataLoader(dataset, batch_size=4, shuffle=True, seed=0, **workers)
        return [batch.tolist() for (batch,) in loader]

    if __name__ == "__main__":
        inline = batches()
        assert sorted(sum(inline, [])) == [float(number) for number in range(20)] != sum(inline, [])
        assert batches(num_workers=2) == batches(num_workers=2, worker_method="thread") == inline
"""
FIT = """
    import torch
    from lightning.pytorch import LightningModule, Trainer

    from lit_loader import ClassificationDataModule, ShapesSource

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(3, 3)

        def training_step(self, batch, batch_idx):
            images, labels = batch
            return torch.nn.functional.binary_cross_entropy_with_logits(self.net(images.mean((2, 3))), labels)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if __name__ == "__main__":
        source = ShapesSource(num_images={"train": 16}, image_size=32, progress=False)
        datamodule = ClassificationDataModule(source, batch_size=4, num_workers=1, multi_label=True)
        trainer = Trainer(max_epochs=2, logger=False, enable_checkpointing=False, accelerator="cpu")
        trainer.fit(Model(), datamodule=datamodule)
        assert trainer.global_step == 8, trainer.global_step
"""
ABSENT = """
    import torch
    import lit_loader.recipes

    for extra, feature in (
        ("plot", lambda: lit_loader.draw_labels([torch.zeros(3, 4, 4)], ["a"])),
        ("recipes", lambda: lit_loader.recipes.DetectionTask("fcos_small", class_names=["a"])),
    ):
        try:
            feature()
        except ImportError as error:
            assert f"pip install 'lit-loader[{extra}]'" in str(error), error
        else:
            raise AssertionError(extra)
"""


@pytest.fixture
def script(program, tmp_path):
    """Run Python code as a file, and return its output and its errors."""

    def run(code, *options):
        (tmp_path / "script.py").write_text(textwrap.dedent(code))
        return program(tmp_path, "python", *options, "script.py")

    return run


def test_every_name_is_imported_without_a_warning(script):
    assert script(EVERY_NAME, "-W", "error") == ("", "")


def test_batches_are_the_same_inline_on_processes_and_on_threads(script):
    assert script(LOADER, "-W", "error") == ("", "")


def test_data_module_fits_a_model(script):
    script(FIT)


def test_program_prints_its_version_and_its_commands(program, script, tmp_path):
    version, _ = script("import lit_loader; print('lit-loader', lit_loader.__version__)")
    assert program(tmp_path, "lit-loader", "--version") == (version, "")
    commands = {"convert", "eval", "index", "predict", "train", "tune"}
    assert commands <= set(program(tmp_path, "lit-loader", "--help")[0].split())


def test_feature_without_its_extra_names_the_extra(script):
    script(ABSENT)


@pytest.mark.parametrize("command", ["train", "eval", "predict", "tune"])
def test_command_of_the_app_names_the_extra(program, command, tmp_path):
    _, errors = program(tmp_path, "lit-loader", command, "experiment=shapes", code=1)
    remedy = "hydra is not installed; install it with `pip install 'lit-loader[hydra]'`"
    assert errors == f"lit-loader: error: {remedy}\n"
