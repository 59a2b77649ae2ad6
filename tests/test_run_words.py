"""``ckpt_path=FILE`` repeats the words of the run that the checkpoint is of."""

from __future__ import annotations

import pytest

from lit_loader.configs import ConfigError
from lit_loader.configs.run_words import with_words_of_run


@pytest.fixture
def run(tmp_path):
    """Write the words of a run, and a checkpoint; return the word that names it."""

    def write(text):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / "best.ckpt").touch()
        (tmp_path / ".hydra").mkdir(exist_ok=True)
        (tmp_path / ".hydra" / "overrides.yaml").write_text(text)
        return f"ckpt_path={tmp_path}/checkpoints/best.ckpt"

    return write


def test_they_come_before_those_of_the_command(run, capsys, tmp_path):
    word = run("[experiment=shapes, trainer.max_epochs=3]")
    assert with_words_of_run(["--cfg", "job", word, "seed=1"]) == [
        *("--cfg", "job", "experiment=shapes", "trainer.max_epochs=3", word, "seed=1")
    ]
    assert capsys.readouterr().err == f"as in {tmp_path}: experiment=shapes trainer.max_epochs=3\n"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("model=fcos_small", ["~callbacks.pictures", "++dataset.options.columns=[x]"]),
        ("callbacks=none", ["model=other", "model.optimizer.lr=1", "++dataset.options.columns=[x]"]),
        ("dataset.options={}", ["model=other", "model.optimizer.lr=1", "~callbacks.pictures"]),
        ("+model.optimizer.lr=2", ["model=other", "~callbacks.pictures", "++dataset.options.columns=[x]"]),
    ],
)
def test_a_word_replaces_the_runs_for_its_key_and_for_all_below_it(run, given, left):
    word = run("[model=other, model.optimizer.lr=1, ~callbacks.pictures, '++dataset.options.columns=[x]']")
    assert with_words_of_run([word, given]) == [*left, word, given]


def test_what_is_of_one_command_alone_is_left_out(run):
    word = run("[train=true, task_name=mine, ckpt_path=other.ckpt, hparams_search=grid, optimized_metric=a]")
    assert with_words_of_run([word]) == [word]


def test_once_they_are_there_none_is_added(run):
    words = with_words_of_run([run("[experiment=shapes, +a.b=1]")])
    assert with_words_of_run(words) == words


def test_other_checkpoints_change_nothing(tmp_path):
    (tmp_path / "best.ckpt").touch()
    for path in (tmp_path / "best.ckpt", "last", "null", "s3://runs/best.ckpt", "a.ckpt,b.ckpt", "${mine}"):
        words = [f"ckpt_path={path}", "seed=1"]
        assert with_words_of_run(words) == words
    assert with_words_of_run(["seed=1"]) == ["seed=1"]


def test_a_checkpoint_that_is_not_there_is_named(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=rf"ckpt_path='best.ckpt' does not exist in {tmp_path}; a run has its"
    ):
        with_words_of_run(["ckpt_path=best.ckpt"])
    word = run("[]").replace("best.ckpt", "last.ckpt")
    with pytest.raises(ConfigError, match=r"last.ckpt' does not exist: that run has not saved it"):
        with_words_of_run([word])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a: 1}", "should be a list of the words"),
        ("[a=1, {b: 2}]", "should be a list of the words"),
        ("[a=1", "cannot be read"),
        ("!!python/object/apply:os.system [exit]", "cannot be read"),
        ("[model._target_=os.system]", "names code; give it on the command line"),
        ("['+callbacks.a={_target_: os.system}']", "names code"),
    ],
)
def test_words_that_are_none_or_run_code_are_refused(run, text, message):
    with pytest.raises(ConfigError, match=message):
        with_words_of_run([run(text)])


def test_a_link_to_what_is_no_text_is_refused(run, tmp_path):
    word = run("[]")
    (tmp_path / ".hydra" / "overrides.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        with_words_of_run([word])
