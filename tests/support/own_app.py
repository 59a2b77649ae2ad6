"""A user's Hydra app over the shipped config groups."""

from __future__ import annotations

import textwrap
from pathlib import Path

APP = """
    import hydra, lit_loader
    from hydra.utils import instantiate

    @hydra.main(version_base="1.3", config_path="conf", config_name="app")
    def main(cfg):
        print(lit_loader.__file__)
        datamodule = instantiate(cfg.datamodule, _convert_="all")
        print(type(datamodule).__name__, datamodule.num_workers, datamodule.source.image_size, datamodule.seed)
        print(cfg.mine)

    main()
"""
CONFIG = """
    defaults:
      - dataset: shapes
      - sampler: class_balanced
      - workers: default
      - datamodule: detection
      - _self_
    hydra:
      searchpath: [pkg://lit_loader.conf]
      run: {dir: out}
    dataset: {image_size: 64}
    mine: 5
"""


def write_app(folder: Path) -> None:
    """Write ``app.py``, which prints where lit_loader is, its data module and ``mine``, and ``conf/app.yaml``."""
    (folder / "conf").mkdir(parents=True)
    (folder / "app.py").write_text(textwrap.dedent(APP))
    (folder / "conf" / "app.yaml").write_text(textwrap.dedent(CONFIG))
