"""Fit and test from one YAML file with Lightning's command line, without Hydra.

    python examples/lightning_cli.py fit --config examples/lightning_cli.yaml
    python examples/lightning_cli.py test --config examples/lightning_cli.yaml --ckpt_path PATH
    python examples/lightning_cli.py fit --config examples/lightning_cli.yaml --data.batch_size 8 --data.num_workers 0

`fit --help` lists the settings of the trainer, `fit --data.help lit_loader.DetectionDataModule` lists the settings of a
data module, and `--print_config` prints the complete configuration. Prints the progress of the fit and its validation
scores.
"""

from __future__ import annotations

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI


def main() -> None:
    """Run the subcommand given on the command line."""
    # In these modes the file names the classes, so one script serves every task.
    LightningCLI(LightningModule, LightningDataModule, subclass_mode_model=True, subclass_mode_data=True)


if __name__ == "__main__":
    main()
