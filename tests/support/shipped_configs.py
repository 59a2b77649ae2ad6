"""The shipped config and the options of its groups, composed once where possible."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

CONF = Path(__file__).parents[2] / "conf"
OPTIONS = {  # by group, without groups that are not nodes of the config
    folder.name: sorted(path.stem for path in folder.glob("*.yaml") if path.stem != "base")
    for folder in sorted(CONF.iterdir())
    if folder.is_dir() and folder.name not in ("__pycache__", "debug", "experiment", "hparams_search", "hydra")
}
EXPERIMENTS = sorted(path.stem for path in CONF.glob("experiment/*.yaml"))
DRAWN = [name for name in EXPERIMENTS if name.startswith(("shapes", "figures"))]
ROOTED = ("auto", "coco", "csv", "image_files", "image_folder", "packed", "voc", "yolo")
REQUIRED = {  # overrides that a dataset needs
    **{name: ["dataset.root=/nowhere"] for name in ROOTED},
    "files": ["dataset.format=coco", "dataset.root=/nowhere", "dataset.train=train.json"],
    "mixed": ["dataset.sources={plant: /nowhere, street: /elsewhere}"],
}


def composed(*overrides: str, hydra: bool = False) -> DictConfig:
    """Return the config of a run, on the embedded set unless an override names another."""
    is_named = any(word.startswith(("dataset=", "experiment=")) for word in overrides)
    words = [*([] if is_named else ["dataset=shapes"]), *overrides]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("train", overrides=words, return_hydra_config=hydra)


composed_once = cache(composed)
"""`composed` with a cache; do not change the config."""


@cache
def option_configs() -> dict[tuple[str, str], DictConfig]:
    """Return for each group and option a config with it; the n-th options of all groups share one."""
    configs = {}
    for number in range(max(map(len, OPTIONS.values()))):
        options = {group: names[number % len(names)] for group, names in OPTIONS.items()}
        words = [f"{group}={name}" for group, name in options.items()]
        cfg = composed(*words, *REQUIRED.get(options["dataset"], []))
        configs |= dict.fromkeys(options.items(), cfg)
    return configs
