"""The commands of the pages on many hosts compose."""

from __future__ import annotations

import pytest

from lit_loader.app.composition import compose_config, validate
from tests.support.documents import PAGES, ROOT, shell_lines

COMMANDS = [
    words[words.index("lit-loader") + 2 :]
    for words in shell_lines(PAGES["scale/hosts"])
    if "lit-loader" in words[1:] and not any(word.startswith("ckpt_path=") for word in words)
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_of_launchers_compose(words):
    cfg = compose_config(ROOT / "conf", "train", words)
    validate(cfg)
    assert cfg.trainer.strategy == "ddp"


def test_torchrun_and_slurm_are_documented():
    assert len(COMMANDS) >= 3
