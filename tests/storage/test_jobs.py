"""Guarantee: jobs on a store end with their caller, and their errors say what to do and show no credentials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest

from lit_loader.errors import SettingError, StorageError
from lit_loader.storage import jobs
from lit_loader.storage.jobs import run_job
from lit_loader.storage.settings import StorageSettings, hide_secrets, storage_settings

# Not by importorskip, because obstore must not be imported where tests fork.
needs_obstore = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")

SECRETS = {"access_key_id": "sesame-id", "secret_access_key": "sesame-key"}


def list_store(settings: StorageSettings, tmp_path):
    return run_job("list", settings, {"path": str(tmp_path / "listing.arrow")}, progress=False)


@needs_obstore
def test_refused_request_names_url_and_reason(object_server, tmp_path):
    object_server.set(token="other")
    options = {**object_server.options, **SECRETS, "token": "sesame-token", "max_retries": 0}
    del options["skip_signature"]
    with pytest.raises(StorageError) as raised:
        list_store(storage_settings(object_server.url("set"), options, cache_dir=None), tmp_path)
    assert object_server.url("set") in str(raised.value)
    assert "AWS_" in str(raised.value)
    assert "sesame" not in str(raised.value)


@needs_obstore
def test_key_that_obstore_cannot_list_is_named_with_the_remedy(object_server, tmp_path):
    (object_server.folder / "odd\x7f.jpg").touch()
    with pytest.raises(StorageError, match=r"odd\\x7f\.jpg.*rename or delete the object") as raised:
        list_store(storage_settings(object_server.url(), object_server.options, cache_dir=None), tmp_path)
    assert "\x7f" not in str(raised.value)


@needs_obstore
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"nosuch": "sesame"}, SettingError, "storage.nosuch=... is not an option of this store"),
        ({"endpoint": "http://127.0.0.1:1", "allow_http": True, "max_retries": 0}, StorageError, "cannot be reached"),
    ],
)
def test_error_of_a_job_names_the_remedy_and_no_secret(options, error, message, tmp_path):
    settings = storage_settings("s3://bucket/set", SECRETS | {"region": "nowhere"} | options, cache_dir=None)
    with pytest.raises(error) as raised:
        list_store(settings, tmp_path)
    assert message in str(raised.value)
    assert "sesame" not in str(raised.value)


def test_missing_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "obstore.py").write_text('raise ModuleNotFoundError("No module named obstore", name="obstore")')
    # The job puts the path of this package first, and then this folder.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ImportError, match=r"pip install 'lit-loader\[storage\]'"):
        list_store(storage_settings("s3://bucket/set", {}, cache_dir=None), tmp_path)


def test_settings_are_on_no_command_line_and_in_no_environment(monkeypatch, tmp_path):
    started = []

    def record(words, **arguments):
        started.append((words, arguments["env"]))
        raise InterruptedError

    monkeypatch.setattr(subprocess, "Popen", record)
    with pytest.raises(InterruptedError):
        list_store(storage_settings("s3://bucket/set", SECRETS, cache_dir=None), tmp_path)
    assert "sesame" not in repr(started)


@pytest.fixture
def endless_job(monkeypatch):
    """A job that waits for a server that never answers."""
    settings = StorageSettings(url="s3://bucket/set", options={"endpoint": "http://10.255.255.1", "allow_http": True})
    processes = []
    start = subprocess.Popen

    def record(*words, **arguments):
        processes.append(start(*words, **arguments))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", record)
    return settings, processes


def test_interrupted_caller_ends_the_job(endless_job, tmp_path, monkeypatch):
    settings, processes = endless_job

    def interrupt(text):
        raise KeyboardInterrupt

    # The first answer takes forever, so the interrupt is raised when the request has been sent.
    monkeypatch.setattr(jobs, "map", lambda function, answers: interrupt(answers), raising=False)
    with pytest.raises(KeyboardInterrupt):
        list_store(settings, tmp_path)
    assert processes[0].returncode is not None


def test_job_ends_when_its_caller_was_killed(tmp_path):
    code = (
        "import sys, lit_loader.storage.jobs as jobs\n"
        "jobs._JOBS['list'] = ('time', 'sleep', '')\n"
        "jobs._JOBS['list'] = ('tests.storage.test_jobs', 'sleep_forever', '')\n"
        "jobs._main('list')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"settings": {"url": "s3://bucket"}, "request": {}}\n')
    process.stdin.flush()
    assert b"progress" in process.stdout.readline()
    # The kernel closes it when the caller is killed.
    process.stdin.close()
    assert process.wait(20) == 1
    process.stdout.close()


class PanicError(BaseException):
    """An error outside of Exception, like a panic of obstore."""


def panic(settings, request, progress):
    # A thread of a pool that waits for the store.
    threading.Thread(target=threading.Event().wait).start()
    raise PanicError("sesame")


def test_panic_in_a_job_is_its_answer():
    code = (
        "import lit_loader.storage.jobs as jobs\n"
        "jobs._JOBS['list'] = ('tests.storage.test_jobs', 'panic', '')\n"
        "jobs._main('list')"
    )
    line = b'{"settings": {"url": "s3://bucket", "options": {"token": "sesame"}}, "request": {}}\n'
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert process.wait(20) == 0
    assert answer["error"]["message"] == "s3://bucket: PanicError: ***"


def sleep_forever(settings, request, progress):
    progress(0, 1)
    threading.Event().wait()


def test_secrets_and_logins_are_hidden_in_texts():
    text = "GET http://me:pw@host/x failed for sesame-key, region eu-1"
    assert hide_secrets(text, SECRETS | {"region": "eu-1"}) == "GET http://***@host/x failed for ***, region eu-1"
    assert hide_secrets("GET /x?sig=ab%2Fcd%3D", {"sas_key": "ab/cd="}) == "GET /x?sig=***"
