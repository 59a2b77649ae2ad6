"""The commands of the pages on many hosts compose."""

from __future__ import annotations

from lit_loader.app.composition import compose_config, validate
from tests.support.documents import PAGES, ROOT, shell_lines

COMMANDS = [
    tuple(words[words.index("lit-loader") + 2 :])
    for words in shell_lines(PAGES["scale/hosts"])
    if "lit-loader" in words[1:] and not any(word.startswith("ckpt_path=") for word in words)
]


def test_commands_of_launchers_compose():
    assert len(COMMANDS) >= 3  # torchrun, Slurm, restarts
    for words in set(COMMANDS):
        cfg = compose_config(ROOT / "conf", "train", list(words))
        validate(cfg)
        assert cfg.trainer.strategy == "ddp"
