"""Mistakes in a config end the run with a message that names the remedy, and no traceback."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

import pytest
from hydra.errors import ConfigCompositionException, MissingConfigException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_loader.app.composition import ConfigError, compose_config, run_with_hints
from tests.support.shipped_configs import composed


def message_of(main, capsys):
    with pytest.raises(SystemExit) as ended:
        run_with_hints(main)
    assert ended.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("datamodule.batchsize=8", "did you mean datamodule.batch_size?"),
        ("sampler=nope", "\n    class_balanced\n"),
        (
            "sampler=class_balance",
            "config: sampler has no option 'class_balance'; did you mean sampler=class_balanced?\n",
        ),
        ("dataset.root=x", "dataset.root belongs to dataset=auto or dataset=coco or dataset=csv or"),
        ("datamodule.label_attribute=finish", "datamodule.label_attribute belongs to datamodule=classification"),
        ("datamodule.train_transforms.margin=0", "belongs to datamodule=classification or datamodule=landmarks"),
        ("sampler.reduce=max", "sampler.reduce belongs to sampler=weighted"),
        ("batch_size=8", "did you mean datamodule.batch_size?"),
        ("exponent=1", "did you mean sampler.exponent?"),
        ("smapler=random", "did you mean sampler?"),
        ("qqqq=1", "+qqqq=VALUE adds your own key"),
        ("datamodule.train_transforms.hflipp=1", "did you mean datamodule.train_transforms.hflip?"),
        ("datamodule.train_transform.hflip=1", "did you mean datamodule.train_transforms?"),
        ("datamodule.val_transforms.size=64", "datamodule.val_transforms='{size: VALUE}'"),
        ("datamodule.source.image_size=64", "set dataset.image_size"),
        ("datamodule.num_workers=4", "datamodule has no key 'num_workers'; did you mean workers.num_workers?"),
        ("datamodule.max_pixels=9", "datamodule has no key 'max_pixels'; did you mean datamodule.reading.max_pixels?"),
        ("trainer.min_epochs=3", "+trainer.min_epochs=VALUE adds another of its arguments"),
        (
            "callbacks.early_stopping.patience=3",
            "belongs to callbacks=early_stopping; choose one of these, several by callbacks=[default,early_stopping]",
        ),
        ("logger.tensorboard.name=a", "choose one of these, several by logger=[csv,tensorboard]"),
        ("callbacks.model_checkpoint.monitr=a", "did you mean callbacks.model_checkpoint.monitor?"),
        ("mixing.mosaic.p=0.5", "mixing.mosaic.p belongs to mixing=mosaic; choose one of these"),
        ("mixing.mosiac.p=0.5", "did you mean mixing.mosaic?"),
        ("mosaic.p=0.5", "did you mean mixing.mosaic.p?"),
        ("datamodule.mixing.mosaic.p=0.5", "set mixing.mosaic.p"),
        ("mixing=mosiac", "mosaic"),
        ("early_stopping.patience=3", "did you mean callbacks.early_stopping.patience?"),
        ("datamodule.train_transforms.flip_pairs=[]", "+datamodule.train_transforms.flip_pairs=VALUE adds"),
        ("datamodule.train_transforms={_target_: a.B}", "pass ~datamodule.train_transforms '+datamodule.train_tra"),
        ("datamodule.train_transforms={hflipp: 1}", "did you mean datamodule.train_transforms.hflip?"),
    ],
)
def test_mistakes_on_the_command_line_end_the_run_with_a_hint(override, message, capsys):
    assert message in message_of(lambda: composed(override), capsys)


@pytest.mark.parametrize(
    ("command", "override", "message"),
    [
        ("predict", "predict.frmat=voc", "predict has no key 'frmat'; did you mean predict.format? Its keys: "),
        ("predict", "sorce=x", "did you mean source? Top-level keys: "),
        ("train", "predict.format=voc", "unknown key 'predict.format'; Top-level keys: "),  # not dataset.predict.format
        ("train", "datset.nope=1", "did you mean dataset? Top-level keys: "),
    ],
)
def test_hints_know_the_keys_of_the_command(command, override, message):
    with pytest.raises(ConfigError) as caught:
        compose_config(config_name=command, overrides=["dataset=shapes", override])
    assert message in str(caught.value)


@pytest.mark.parametrize("model", ["classifier_small", "heatmaps_small", "fcos_small"])
def test_unknown_key_lists_the_keys_of_the_chosen_option(model, capsys, monkeypatch):
    task = {"classifier_small": "classification", "heatmaps_small": "landmarks"}.get(model, "detection")
    words = ["dataset=shapes", f"datamodule={task}", f"model={model}"]
    for word in ("model.lss=1", "+model.lss=1"):
        monkeypatch.setattr(sys, "argv", ["lit-loader", *words, word])
        message = message_of(lambda word=word: compose_config(overrides=[*words, word]), capsys)
        assert "model has no key 'lss'" in message
        # Detectors of torchvision compute their own loss.
        assert ("did you mean model.loss?" in message) == (task != "detection")


def keys_below(node, path=""):
    for name, child in node.items():
        yield f"{path}{name}"
        if isinstance(child, dict):
            yield from keys_below(child, f"{path}{name}.")


def test_hint_never_suggests_the_refused_key(capsys):
    keys = list(keys_below(OmegaConf.to_container(composed(), resolve=False)))
    assert len(keys) > 100
    for key in [*keys, "experiment.x", "seed.x", "datasets.root", "hydra_"]:

        def refuse(key=key):
            raise ConfigCompositionException(f"Could not override '{key}'.")

        suggestions = re.findall(r"did you mean (.*?)\?", message_of(refuse, capsys))
        assert key not in [word for text in suggestions for word in text.split(" or ")]


COCO = ["dataset=files", "dataset.format=coco", "dataset.root=/x", "dataset.train=a.json"]


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("dataset.policy={missing_image: drop}", "dataset.policy.missing_image", "drop"),
        ("dataset.policy.missing_image=drop", "dataset.policy.missing_image", "drop"),
        ("dataset.options={image_dir: a}", "dataset.options.image_dir", "a"),
        ("dataset.options.image_dir=a", "dataset.options.image_dir", "a"),
        ("dataset.stage_options={test: {image_dir: b}}", "dataset.stage_options.test.image_dir", "b"),
        ("dataset.stage_options.test.image_dir=b", "dataset.stage_options.test.image_dir", "b"),
    ],
)
def test_policy_and_options_are_set_as_users_write_them(override, key, value, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["app", *COCO, override])
    configs = [compose_config(overrides=[*COCO, override])]
    run_with_hints(lambda: configs.append(composed(*sys.argv[1:])))
    assert [OmegaConf.select(cfg, key) for cfg in configs] == [value, value]


def test_settings_of_a_mix_are_set_as_users_write_them():
    words = ["sources={a: x, b: y}", "classes={a: {old: new, *: null}}", "missing={b: {new: absent}}", "ratio={a: 2}"]
    keyed_words = [
        *("sources.a=x", "sources.b=y", "classes.a.old=new", "classes.a={*: null}"),
        *("missing.b.new=absent", "ratio.a=2"),
    ]
    expected = {
        "sources": {"a": "x", "b": "y"},
        "classes": {"a": {"old": "new", "*": None}},
        "missing": {"b": {"new": "absent"}},
        "ratio": {"a": 2},
    }
    for settings in (words, keyed_words):
        cfg = compose_config(overrides=["dataset=mixed", *(f"dataset.{word}" for word in settings)])
        assert {key: cfg.dataset[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("node", "override", "refusal"),
    [
        ("datamodule", "datamodule.batch_size=0", "datamodule: batch_size=0"),
        ("datamodule", "datamodule.train_transforms.hflip=2", "datamodule: hflip=2"),
        ("sampler", "sampler.exponent=5", "sampler: `exponent` must be in [0, 1], got exponent=5.0"),
        (
            "datamodule",
            "sampler.exponent=5",
            "datamodule.train_sampler: `exponent` must be in [0, 1], got exponent=5.0",
        ),
        ("trainer", "+trainer.nope=5", "trainer: "),
    ],
)
def test_refusal_of_a_constructor_names_its_node(node, override, refusal, capsys, monkeypatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    cfg = composed("sampler=class_balanced", "trainer.default_root_dir=.", override)
    message = message_of(lambda: instantiate(cfg[node], _convert_="all"), capsys)
    assert message.startswith(f"error in the config: {refusal}".replace("5.0", "5"))
    assert len(message.splitlines()) == 1


def test_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(MissingConfigException):
        run_with_hints(lambda: composed("sampler=nope"))


def test_other_errors_are_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        run_with_hints(lambda: 1 / 0)


@pytest.mark.parametrize("unbuffered", [[], ["-u"]], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("lines", [1, 100_000])
def test_reader_that_leaves_early_ends_the_run_quietly(lines, unbuffered):
    code = (
        "import sys; from lit_loader.app.composition import run_with_hints\n"
        "def main():\n"
        "    sys.stdin.read()\n"
        f"    for line in range({lines}): print('line', line)\n"
        "run_with_hints(main)"
    )
    pipe = subprocess.PIPE
    app = subprocess.Popen([sys.executable, *unbuffered, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
    # Leave before the app, which waits for the end of its input, prints anything.
    app.stdout.close()
    app.stdin.close()
    assert app.stderr.read() == b""
    assert app.wait() == 1
    app.stderr.close()


def test_error_of_another_pipe_is_raised():
    code = (
        "from lit_loader.app.composition import run_with_hints\n"
        "def main(): raise BrokenPipeError('another')\n"
        "run_with_hints(main)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "BrokenPipeError: another" in result.stderr


def test_argparse_checks_help_again_once_hydra_has_its_parser(monkeypatch):
    def refuse(parser, action):
        raise ValueError("badly formed help string")

    monkeypatch.setattr(argparse.ArgumentParser, "_check_help", refuse, raising=False)
    lazy_help = argparse.Action([], "shell_completion", help=object())
    during_job = []

    def main():
        argparse.ArgumentParser()._check_help(lazy_help)  # as Python 3.14 does when Hydra adds the argument
        during_job.append(argparse.ArgumentParser._check_help)

    run_with_hints(main)
    assert during_job == [refuse]
    assert argparse.ArgumentParser._check_help is refuse
