"""``ckpt_path=FILE`` replays the overrides of the run that wrote the checkpoint."""

from __future__ import annotations

import os
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lit_loader.app.composition import ConfigError
from lit_loader.app.composition.stored_overrides import overrides_to_repeat, replay_overrides
from lit_loader.foundation.escaping import quote_for_hydra


def write_run(folder, text):
    """Write a run folder with a checkpoint and stored overrides; return the override that names the checkpoint."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints" / "best.ckpt").touch()
    (folder / ".hydra").mkdir(exist_ok=True)
    (folder / ".hydra" / "overrides.yaml").write_bytes(text.encode("latin-1", "replace"))
    return f"ckpt_path={folder}/checkpoints/best.ckpt"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write the overrides of a run in the current folder, and a checkpoint; return the override that names it."""
    monkeypatch.chdir(tmp_path)
    return lambda text: write_run(tmp_path, text)


def test_stored_overrides_precede_those_of_the_command(run, capsys, tmp_path):
    word = run("[experiment=shapes, trainer.max_epochs=3]")
    assert replay_overrides(["--cfg", "job", word, "seed=1"]) == [
        *("--cfg", "job", "experiment=shapes", "trainer.max_epochs=3", word, "seed=1")
    ]
    assert capsys.readouterr().err == f"as in {tmp_path}: experiment=shapes trainer.max_epochs=3\n"


@pytest.mark.parametrize(
    ("command", "replayed"),
    [
        ("model=fcos_small", ["~callbacks.pictures", "++dataset.options.columns=[x]"]),
        ("callbacks=none", ["model=other", "model.optimizer.lr=1", "++dataset.options.columns=[x]"]),
        ("dataset.options={}", ["model=other", "model.optimizer.lr=1", "~callbacks.pictures"]),
        ("+model.optimizer.lr=2", ["model=other", "~callbacks.pictures", "++dataset.options.columns=[x]"]),
    ],
)
def test_override_of_the_command_replaces_its_key_and_all_keys_below(run, command, replayed):
    word = run("[model=other, model.optimizer.lr=1, ~callbacks.pictures, '++dataset.options.columns=[x]']")
    assert replay_overrides([word, command]) == [*replayed, word, command]


def test_keys_of_one_command_are_not_replayed(run):
    word = run("[train=true, task_name=mine, ckpt_path=other.ckpt, hparams_search=grid, optimized_metric=a]")
    assert replay_overrides([word]) == [word]


def test_replay_is_idempotent(run):
    words = replay_overrides([run("[experiment=shapes, +model.b=1]")])
    assert replay_overrides(words) == words


def test_other_checkpoints_change_nothing(tmp_path):
    (tmp_path / "best.ckpt").touch()
    for path in (tmp_path / "best.ckpt", "last", "null", "s3://runs/best.ckpt", "a.ckpt,b.ckpt", "${mine}"):
        words = [f"ckpt_path={path}", "seed=1"]
        assert replay_overrides(words) == words
    assert replay_overrides(["seed=1"]) == ["seed=1"]


def test_missing_checkpoint_is_named(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"ckpt_path='best.ckpt' does not exist in {tmp_path}; a run has its"):
        replay_overrides(["ckpt_path=best.ckpt"])
    word = run("[]").replace("best.ckpt", "last.ckpt")
    with pytest.raises(ConfigError, match=r"last.ckpt' does not exist: that run has not saved it"):
        replay_overrides([word])


def test_folder_or_pipe_is_refused_as_checkpoint(run, tmp_path):
    run("[]")
    with pytest.raises(ConfigError, match=r"is a folder; name a file in it, such as checkpoints/best\.ckpt"):
        replay_overrides([f"ckpt_path={tmp_path}"])
    os.mkfifo(tmp_path / "pipe.ckpt")
    with pytest.raises(ConfigError, match="is a pipe or a device; expected a regular file"):
        replay_overrides([f"ckpt_path={tmp_path}/pipe.ckpt"])


@pytest.mark.parametrize("name", ["it's a run", "a=b", 'say "x"', "a,b", "{x}", "50%", "tail\\"])
def test_path_may_contain_any_character(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    word = write_run(tmp_path / name, "[seed=3]")
    replayed, checkpoint = replay_overrides([word])
    assert replayed == "seed=3"
    path = str(tmp_path / name / "checkpoints" / "best.ckpt")
    assert OverridesParser.create().parse_override(checkpoint).value() == path
    assert replay_overrides([f"ckpt_path={quote_for_hydra(path)}"])[0] == "seed=3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a: 1}", "should be a list of the overrides"),
        ("[a=1, {b: 2}]", "should be a list of the overrides"),
        ("[a=1", "cannot be read"),
        ("!!python/object/apply:os.system [exit]", "cannot be read"),
        (f"[{'x' * (1 << 16)}]", "more than 65536 bytes"),
        ("\xff\xfe\0", "cannot be read"),
    ],
)
def test_file_without_overrides_is_refused(run, text, message):
    with pytest.raises(ConfigError, match=message):
        replay_overrides([run(text)])


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("model._target_=os.system", "names code"),
        ("model={model: {_target_: os.system}}", "names code"),
        ("+callbacks.a={_target_: os.system}", "names code"),
        ("+model.model._args_=[x]", "names code"),
        ("++dataset.sources={a: {_target_: os.system, command: x}}", "names code"),
        ("++dataset.sources={a: {options: [{_target_: os.system}]}}", "names code"),
        ("++dataset.sources.a._target_=os.system", "names code"),
        ("++dataset.sources={a: '${oc.env:SECRET}'}", "is looked up"),
        ("+model.x={_tar${oc.decode:get}_: torch.load}", "is looked up"),
        ("model.weights=${oc.env:SECRET}", "is looked up"),
        ("mixing.mosaic._target_=os.system", "names code"),
        ("mixing.mosaic.p={_target_: os.system, command: x}", "names code"),
        (r"model.weights=$\{oc.env:SECRET\}", "is looked up"),
        ("dataset.root=${oc.create:{}}", "is looked up"),
        ("hydra.searchpath=[file:///tmp/evil]", "is not a key or a group"),
        ("hydra.run.dir=/tmp/evil", "is not a key or a group"),
        ("hydra.job_logging.handlers.file.filename=/tmp/evil", "is not a key or a group"),
        ("hydra/launcher=joblib", "is not a key or a group"),
        ("--config-dir=evil", "is not an override"),
        ("--config-name=evil", "is not an override"),
        ("-cn", "is not an override"),
        ("--multirun", "is not an override"),
        ("task_name =../../x", "is not an override"),
        ("+mine=1", "is not a key or a group"),
        ("model@dataset=evil", "is not a key or a group"),
        ("model=../../../../tmp/evil", "is not an option"),
        ("callbacks=[default,../evil]", "is not an option"),
        ("model.optimizer.lr=1,2", "is a sweep"),
        ("dataset=glob(*)", "is a sweep"),
        ("+logger.csv={save_dir: evil}", "names an output"),
        ("callbacks={pictures: {folder: evil}}", "names an output"),
        ("logger.csv.name=../../evil", "names a file or an address"),
        ("model.weights=/tmp/evil.pt", "names a file or an address"),
        ("model.weights=evil.pt", "names a file or an address"),
        ("model.model=timm/hf-hub:evil/model", "names a file or an address"),
        ("+model.compile={backend: inductor, options: {cpp.cxx: [evil]}}", "chooses a compiler"),
    ],
)
def test_overrides_that_run_code_or_name_a_location_are_refused(run, word, reason):
    checkpoint = run(f"[seed=1, {quote_yaml(word)}]")
    with pytest.raises(ConfigError, match=reason) as error:
        replay_overrides([checkpoint])
    assert repr(word) in str(error.value)
    assert "seed=1" not in str(error.value)


def quote_yaml(text):
    return "'" + text.replace("'", "''") + "'"


def test_shipped_keys_with_plain_values_are_replayed(run):
    words = [
        "experiment=coco_fasterrcnn",
        "callbacks=[default,early_stopping]",
        "mixing=[mosaic,copy_paste]",
        "mixing.mosaic.p={epochs: [0, 85], value: 0.5}",
        "mixing.copy_paste.class_weights={traffic light: 2}",
        "dataset.root=/data/co co",
        "dataset.class_names=[a,b]",
        "++dataset.sources={plant: /data/plant, street: ../street}",
        "++dataset.classes={plant: {traffic light: light, *: null}}",
        "callbacks.early_stopping.monitor=val/map",
        "model.model=timm/resnet50.a1_in1k",
        "model.weights=COCO_V1",
        "model.compile=true",
        "model.optimizer.lr=1e-3",
        "~callbacks.pictures",
        "+trainer.limit_train_batches=0.5",
        "tags=[x]",
    ]
    checkpoint = run(f"[{', '.join(map(quote_yaml, words))}]")
    assert replay_overrides([checkpoint]) == [*words, checkpoint]


@pytest.mark.parametrize("word", ["paths.log_dir=/elsewhere", "callbacks.pictures.folder=/x", "dataset.cache_dir=/x"])
def test_outputs_of_a_run_are_listed_and_not_replayed(run, capsys, word):
    checkpoint = run(f"[seed=1, {word}]")
    assert replay_overrides([checkpoint]) == ["seed=1", checkpoint]
    assert f"since these name outputs: {word}" in capsys.readouterr().err


EXTRAS = {
    stage: f"+datamodule.{stage}_transforms.extra_{place}=[{{_target_: os.system, command: x}}]"
    for stage, place in (("train", "before"), ("val", "after"), ("test", "after"), ("predict", "before"))
}


@pytest.mark.parametrize(("command", "stage"), [("eval", "test"), ("predict", "predict")])
def test_eval_and_predict_leave_out_transforms_of_other_stages(run, capsys, command, stage):
    unused = [word for name, word in EXTRAS.items() if name != stage]
    checkpoint = run(f"[{', '.join(map(quote_yaml, ['seed=1', *unused, 'datamodule.batch_size=2']))}]")
    words = replay_overrides([checkpoint], command)
    assert words == ["seed=1", "datamodule.batch_size=2", checkpoint]
    assert f"since {command} does not use them: {shlex.join(unused)}\n" in capsys.readouterr().err
    assert replay_overrides(words, command) == words


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("train", EXTRAS["train"]),
        ("eval", EXTRAS["test"]),
        ("predict", EXTRAS["predict"]),
        ("eval", "datamodule.train_transforms={extra_after: [{_target_: os.system}]}"),
        ("eval", "datamodule.train_transforms.extra_fields={_target_: os.system}"),
        ("eval", "+callbacks.train_transforms.extra_after={_target_: os.system}"),
        ("eval", "datamodule.train_transforms._target_=os.system"),
    ],
)
def test_refused_words_are_repeated_for_the_command(run, command, word):
    checkpoint = run(f"[seed=1, {quote_yaml(word)}]")
    with pytest.raises(ConfigError, match="names code") as error:
        replay_overrides([checkpoint], command)
    remedy = f"If you trust them, add them to the command: {shlex.join([word])}"
    assert str(error.value).endswith(remedy)
    assert replay_overrides([checkpoint, word], command) == ["seed=1", checkpoint, word]


def test_run_outside_of_the_current_folder_must_be_trusted(run, tmp_path, monkeypatch):
    checkpoint = run("[seed=1, trust_run=true]")
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    with pytest.raises(ConfigError, match=r"is outside of .*: seed=1; if they are .*, pass trust_run=true"):
        replay_overrides([checkpoint])
    with pytest.raises(ConfigError, match="is outside of"):
        replay_overrides([checkpoint, "trust_run=false"])
    assert replay_overrides([checkpoint, "trust_run=true"]) == ["seed=1", checkpoint, "trust_run=true"]
    (tmp_path / "inside" / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is outside of"):
        replay_overrides(["ckpt_path=link/checkpoints/best.ckpt"])


def test_resume_command_repeats_the_overrides_that_are_not_replayed(run, tmp_path, monkeypatch):
    words = ["seed=1", "task_name=mine", "paths.log_dir=runs", "+model.a={_target_: mine.A}", "+model.b=${seed}"]
    checkpoint = run(f"[{', '.join(map(quote_yaml, words))}]")
    path = checkpoint.partition("=")[2]
    assert overrides_to_repeat(words, path) == words[2:]
    assert replay_overrides([checkpoint, *overrides_to_repeat(words, path)]) == ["seed=1", checkpoint, *words[2:]]
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    assert overrides_to_repeat(words, path) == ["trust_run=true", *words[2:]]


def test_terminal_escapes_of_a_run_are_not_printed(run, capsys):
    checkpoint = run("[\"tags=['\\e]0;x']\"]")
    replay_overrides([checkpoint])
    assert "\x1b" not in capsys.readouterr().err


FRAGMENTS = [
    *("model", "dataset", "callbacks", "hydra", "paths", "trainer", "seed", "_target_", "_partial_", "."),
    *("=", "+", "~", "@", "/", "..", "[", "]", "{", "}", ":", ",", "'", '"', "\\", "$", "${", " ", "-", "--"),
    *("oc.env:HOME", "oc.decode:get", "oc.create:", "torch.load", "root", "weights", "evil.pt", "1", "null"),
]


@given(st.lists(st.sampled_from(FRAGMENTS), min_size=2, max_size=14).map("".join))
def test_no_combination_of_fragments_brings_code_or_a_lookup(tmp_path_factory, word):
    folder = tmp_path_factory.getbasetemp() / "fuzz_run"
    checkpoint = write_run(folder, f"[{quote_yaml(word)}]")
    command = ("train", "eval", "predict")[len(word) % 3]
    try:
        replayed = replay_overrides([checkpoint, "trust_run=true"], command)
    except ConfigError:
        return
    for item in replayed[:-2]:
        override = OverridesParser.create().parse_override(item)
        assert override.key_or_group.split(".")[0] in {"model", "dataset", "callbacks", "trainer", "seed"}
        assert "_target_" not in item
        node = OmegaConf.create({"value": override.value()})
        assert "${" not in OmegaConf.to_yaml(node)
