"""The servers of the tests behave as S3 does, and their faults strike."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.object_server import Fault, FaultKind

# Not by importorskip, because obstore must not be imported where tests fork.
pytestmark = pytest.mark.skipif(find_spec("obstore") is None, reason="the extra storage is not installed")

# A process of its own: obstore must not be imported where tests fork.
SCRIPT = """
import json, sys
import obstore
from obstore.store import S3Store

bucket, options = json.loads(sys.argv[1])
store = S3Store(bucket, **options, retry_config={"max_retries": 0})
results = {}
for number in range(3):
    obstore.put(store, f"set/a b&<{number}>.txt", f"text {number}".encode())
body = bytes(range(256)) * 40960
obstore.put(store, "set/large", body, use_multipart=True, chunk_size=5 << 20)
results["large"] = bytes(obstore.get(store, "set/large").bytes()) == body
results["range"] = bytes(obstore.get_range(store, "set/large", start=250, end=260)) == body[250:260]
objects = [item for page in obstore.list(store, "set") for item in page]
results["keys"] = [item["path"] for item in objects]
results["sizes"] = [item["size"] for item in objects]
results["folder"] = "set" in obstore.list_with_delimiter(store)["common_prefixes"]
entry = objects[0]
etag = '"' + entry["e_tag"].strip('"') + '"'
results["same version"] = bytes(obstore.get(store, entry["path"], options={"if_match": etag}).bytes()).decode()
obstore.put(store, "other", b"")
obstore.delete(store, ["other", entry["path"]])
results["after deletion"] = [item["path"] for page in obstore.list(store, "set") for item in page]
print(json.dumps(results))
"""


def use_from_process(script, *values):
    command = [sys.executable, "-c", script, json.dumps(values)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def check_objects(server):
    results = use_from_process(SCRIPT, server.folder.name, server.options)
    names = [f"set/a b&<{number}>.txt" for number in range(3)]
    assert results == {
        "large": True,
        "range": True,
        "keys": [*names, "set/large"],
        "sizes": [6, 6, 6, 10 << 20],
        "folder": True,
        "same version": "text 0",
        "after deletion": [*names[1:], "set/large"],
    }


LIST_SCRIPT = """
import json, sys
import obstore
from obstore.store import S3Store

bucket, options = json.loads(sys.argv[1])
store = S3Store(bucket, **options)
pages = [[item["path"] for item in page] for page in obstore.list(store, chunk_size=1000)]
print(json.dumps([key for page in pages for key in page]))
"""


def test_server_stores_lists_and_reads_objects(object_server):
    check_objects(object_server)


def test_rclone_stores_lists_and_reads_objects(rclone_server):
    check_objects(rclone_server)


def test_rclone_refuses_a_wrong_signature(rclone_server):
    (rclone_server.folder / "a").write_bytes(b"abc")
    options = rclone_server.options | {"secret_access_key": "wrong"}
    result = use_from_process(FAULT_SCRIPT, rclone_server.folder.name, options, ["a"], {"a": "*"})
    assert "SignatureDoesNotMatch" in result["a"]


def test_listing_of_several_pages_has_each_key_once(object_server):
    keys = [f"{number:04d}.jpg" for number in range(1500)]
    for key in keys:
        (object_server.folder / key).touch()
    assert use_from_process(LIST_SCRIPT, object_server.bucket, object_server.options) == keys
    assert object_server.counts["list"] == 2


FAULT_SCRIPT = """
import json, sys
import obstore
from obstore.store import S3Store

bucket, options, kinds, etag = json.loads(sys.argv[1])
store = S3Store(bucket, **options, retry_config={"max_retries": 0})
results = {}
for kind in kinds:
    try:
        results[kind] = len(obstore.get(store, kind, options={"if_match": etag[kind]}).bytes())
    except Exception as error:
        results[kind] = str(error)
print(json.dumps(results))
"""


def test_each_fault_strikes_its_objects(object_server):
    kinds = list(FaultKind)
    for kind in kinds:
        (object_server.folder / kind).write_bytes(bytes(1000))
    listed = use_from_process(
        LIST_SCRIPT.replace('item["path"]', '(item["path"], item["e_tag"])'),
        object_server.bucket,
        object_server.options,
    )
    object_server.set_faults(*(Fault(kind, keys=f"^{kind}$") for kind in kinds))
    results = use_from_process(FAULT_SCRIPT, object_server.bucket, object_server.options, kinds, dict(listed))
    assert results["longer"] == 1001
    assert results["shorter"] == 500
    parts = {
        "unavailable": "503",
        "error": "500",
        "expired": "ExpiredToken",
        "vanished": "404",
        "changed": "412",
        "cut": "error",
        "short": "error",
    }
    for kind, part in parts.items():
        assert part in results[kind], (kind, results[kind])
    assert {f"fault_{kind}": 1 for kind in kinds}.items() <= object_server.counts.items()


def test_token_is_refused_until_the_client_sends_the_new_one(object_server):
    (object_server.folder / "a").write_bytes(b"abc")
    object_server.set(token="new")
    options = {name: value for name, value in object_server.options.items() if name != "skip_signature"}
    options |= {"access_key_id": "id", "secret_access_key": "key"}
    for token, expected in (("old", "ExpiredToken"), ("new", 3)):
        arguments = (object_server.bucket, options | {"token": token}, ["a"], {"a": "*"})
        result = use_from_process(FAULT_SCRIPT, *arguments)["a"]
        assert result == expected or expected in result
