"""Guarantee: credentials of a store are in no file of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import OmegaConf

from lit_loader.app import secrets
from lit_loader.app.secrets import hide_in_run_folder, masked, masked_override
from lit_loader.foundation.escaping import hydra_value
from lit_loader.foundation.masking import mask_addresses
from lit_loader.storage.settings import hide_secrets
from tests.support.object_server import ObjectServer
from tests.support.scripts import ROOT
from tests.support.small_app import SMALL, run_app
from tests.support.url_sets import write_sets

# An option that no rule for passwords knows.
SECRET = "sesame-of-the-store"


def test_credentials_are_masked_in_nested_configs():
    storage = {"endpoint": "http://host", "sas_key": SECRET, "region": None}
    config = {"dataset": {"sources": {"a": {"storage": storage}, "b": [{"storage": storage}]}}, "sas_key": "other"}
    masked_config = masked(config)
    assert SECRET not in str(masked_config)
    assert masked_config["dataset"]["sources"]["a"]["storage"] == storage | {"sas_key": "***"}
    assert masked_config["sas_key"] == "other"
    reference = {"storage": {"sas_key": "${oc.env:NAME}", "token": "${oc.decode:${oc.env:NAME}}"}}
    assert masked(reference) == reference
    assert SECRET not in str(masked({"storage": {"sas_key": f"${{oc.env:NAME,{SECRET}}}", "a": {"b": [SECRET]}}}))
    addresses = {"source": f"s3://me:{SECRET}@bucket", "root": [f"https://host/set?sig={SECRET}"]}
    assert masked(addresses) == {"source": "s3://***@bucket", "root": ["https://host/set?***"]}


@pytest.mark.parametrize(
    ("word", "masked_word"),
    [
        (f"dataset.storage.sas_key={SECRET}", "dataset.storage.sas_key=***"),
        (f"++dataset.storage.sas_key={SECRET}", "++dataset.storage.sas_key=***"),
        (f"dataset.storage={{region: x, sas_key: {SECRET}}}", "dataset.storage=***"),
        (f"dataset.sources.a={{storage: {{sas_key: {SECRET}}}}}", "dataset.sources.a=***"),
        (f"dataset.storage.headers={{a: [{SECRET}]}}", "dataset.storage.headers=***"),
        (f"dataset.storage.sas_key='{SECRET}\\'b\\\\c'", "dataset.storage.sas_key=***"),
        ("dataset.storage.endpoint=http://host", "dataset.storage.endpoint=http://host"),
        ("dataset.storage.sas_key=${oc.env:NAME}", "dataset.storage.sas_key=${oc.env:NAME}"),
    ],
)
def test_overrides_on_the_page_of_a_run_are_masked(word, masked_word):
    assert masked_override(word) == masked_word


def test_files_of_hydra_are_masked_by_key_and_can_be_replayed(tmp_path, monkeypatch):
    folder = tmp_path / "run" / ".hydra"
    folder.mkdir(parents=True)
    # Other values contain a short login such as LocalStack's.
    storage = {"access_key_id": "test", "sas_key": SECRET, "token": "${oc.env:NAME}", "region": "x"}
    cfg = OmegaConf.create({"dataset": {"root": "s3://bucket/latest", "storage": storage}, "test": True, "lr": "1e-3"})
    secret_words = ["dataset.storage.access_key_id=test", f"dataset.storage.sas_key={SECRET}"]
    words = [
        "dataset.storage.region=x",
        "dataset.storage.token=${oc.env:NAME}",
        "test=false",
        "dataset.root=s3://b/latest",
    ]
    all_words = [*words, *secret_words]
    OmegaConf.save(cfg, folder / "config.yaml")
    (folder / "overrides.yaml").write_text(yaml.safe_dump(all_words))
    settings = {"job": {"override_dirname": ",".join(all_words), "name": "test"}, "overrides": {"task": all_words}}
    (folder / "hydra.yaml").write_text(yaml.safe_dump({"hydra": settings}))
    (tmp_path / "multirun.yaml").write_text(yaml.safe_dump({"hydra": settings}))
    hydra = SimpleNamespace(
        runtime=SimpleNamespace(output_dir=str(folder.parent)),
        output_subdir=".hydra",
        overrides=OmegaConf.create({"task": all_words}),
        sweep=SimpleNamespace(dir=str(tmp_path)),
    )
    monkeypatch.setattr(secrets, "HydraConfig", SimpleNamespace(initialized=lambda: True, get=lambda: hydra))
    hide_in_run_folder(cfg)
    texts = {path.name: path.read_text() for path in (*folder.iterdir(), tmp_path / "multirun.yaml")}
    assert SECRET not in str(texts)
    assert yaml.safe_load(texts["overrides.yaml"]) == words
    cfg.dataset.storage.update(access_key_id="***", sas_key="***")
    assert OmegaConf.create(texts["config.yaml"]) == cfg
    masked_words = [*words, "dataset.storage.access_key_id=***", "dataset.storage.sas_key=***"]
    masked_settings = {"job": {"override_dirname": "***", "name": "test"}, "overrides": {"task": masked_words}}
    assert yaml.safe_load(texts["hydra.yaml"]) == yaml.safe_load(texts["multirun.yaml"]) == {"hydra": masked_settings}


@pytest.mark.parametrize(
    ("text", "masked_text"),
    [
        ("http://me:p@ss@host/a@b failed", "http://***@host/a@b failed"),
        ("'s3://b/x?sig=abc&x=1' of http://host", "'s3://b/x?***' of http://host"),
        ("s3://me:p/ss@bucket/a and https://me:8p/s@s@host/a", "s3://***@bucket/a and https://***@host/a"),
        ("http://host:8080/a@b, http://[::1]:80/a@b", "http://host:8080/a@b, http://[::1]:80/a@b"),
        ("mail me@host, see http://host/?", "mail me@host, see http://host/?"),
    ],
)
def test_logins_and_queries_of_addresses_are_masked(text, masked_text):
    assert mask_addresses(text) == masked_text
    assert hide_secrets(text, {}) == masked_text


def test_trained_run_has_no_credential_in_any_file_and_keeps_its_other_overrides(tmp_path, monkeypatch):
    # A folder in place of a store; the run has the same config, data and checkpoints.
    monkeypatch.setattr("lit_loader.datasets.url_source.remote_settings", lambda *args, **settings: None)
    write_sets(tmp_path / "sets")
    small = [word for word in SMALL if not word.startswith(("experiment=", "dataset.", "model.scheduler"))]
    words = [f"dataset.root={tmp_path}/sets/coco", "dataset=files", "dataset.format=coco", "dataset.train=train.json"]
    words += ["dataset.val=train.json", "model=fcos_small", "datamodule=detection", "logger=csv", "test=false"]
    words += ["trainer.limit_train_batches=1", "++dataset.storage.region=test", "+extras.url=https://host/latest"]
    secrets = ["dataset.storage.access_key_id=test", f"dataset.storage.sas_key='{SECRET}\\\\a'"]
    secrets += [f"dataset.storage.headers={{Authorization: [Bearer {SECRET}]}}"]
    address = f"+extras.source='https://me:{SECRET}@host/set?sig={SECRET}'"
    result = run_app(tmp_path, "train", *small, *words, *secrets, address)
    assert result.code == 0, result.err
    assert SECRET not in result.out + result.err
    (folder,) = (tmp_path / "logs/train/runs").iterdir()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert {"README.md", ".hydra/config.yaml", "checkpoints/last.ckpt", "csv/version_0/hparams.yaml"} <= set(files)
    assert [name for name, path in files.items() if SECRET.encode() in path.read_bytes()] == []
    # The credential `test` is a part of other words.
    stored = yaml.safe_load(files[".hydra/overrides.yaml"].read_text())
    assert stored == [*small, *words, "+extras.source='https://***@host/set?***'"]
    config = OmegaConf.load(files[".hydra/config.yaml"])
    assert config.test is False
    assert config.dataset.storage.region == "test"
    assert config.extras.url == "https://host/latest"
    assert config.dataset.storage.access_key_id == "***"


def run_program(*words):
    """Run ``lit-loader`` in a process of its own."""
    code = "import sys; from lit_loader.app.commands import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True)


@pytest.mark.soak
@pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")
def test_no_file_of_a_run_has_a_credential(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = [word for word in SMALL if not word.startswith(("experiment=", "dataset.", "model.scheduler"))]
    with ObjectServer(tmp_path / "server") as server:
        write_sets(server.folder)
        options = server.options | {"access_key_id": f"{SECRET}-id", "secret_access_key": SECRET}
        options["skip_signature"] = "false"
        words = [f"dataset.storage.{name}={hydra_value(value)}" for name, value in options.items()]
        words += [f"dataset.root={server.url('coco')}", "dataset=files", "dataset.format=coco"]
        words += ["dataset.train=train.json", "dataset.val=train.json", "dataset.test=train.json"]
        words += ["dataset.cache_dir=cache", "model=fcos_small", "datamodule=detection", "logger=csv"]
        result = run_program("train", *words, *small)
        assert result.returncode == 0, result.stderr
        assert SECRET not in result.stdout + result.stderr
        run = next((tmp_path / "logs/train/runs").iterdir())
        checkpoint = run / "checkpoints/last.ckpt"
        assert checkpoint.exists()
        files = [path for folder in ("logs", "cache") for path in (tmp_path / folder).rglob("*") if path.is_file()]
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
        # Later commands take credentials from the environment.
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        result = run_program("eval", f"ckpt_path={checkpoint}")
        assert result.returncode == 0, result.stderr
