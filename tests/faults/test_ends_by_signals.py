"""Guarantee: a training run that a signal ends, at any time, leaves no worker after two seconds, no shared memory."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
WITHIN_S = 2.0
IMPORTING_S = 60.0
FORKSERVER = {"multiprocessing_context": "forkserver"}


class Variant(NamedTuple):
    """A training run.

    Attributes:
        arguments: Of its loader.
        ending: How its epochs end.
        seconds: The interval of the signals: from the start of the workers until after the last epoch.
        together: Whether a Ctrl-C may reach its workers at any time too, as a terminal sends it.
    """

    arguments: dict
    ending: str = "whole"
    seconds: float = 0.9
    together: bool = True


# a worker that a fork server starts prints a Ctrl-C of its own until it runs our code; it is Python's, and brief
LOST_BY_PYTHON = re.compile(r"Exception ignored in: .*(/_weakrefset|/weakref)\.py", re.DOTALL)
VARIANTS = [
    Variant({}),
    Variant({"persistent_workers": True}),
    Variant({}, "break", 0.5),
    Variant({"worker_method": "thread"}, together=False),
    Variant(FORKSERVER, seconds=5.0, together=False),
]


class Nursery:
    """The process that forks the runs."""

    def __init__(self, folder):
        self.stderr = folder / "stderr"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.training"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, variant):
        request = {"arguments": variant.arguments, "way": variant.ending, "stderr": str(self.stderr)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self):
        return int(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(30) == 0


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    nursery = Nursery(tmp_path_factory.mktemp("runs"))
    yield nursery
    nursery.close()


def session(sid):
    """Return the processes of a session that have not ended, each with its parent."""
    parent_by_pid = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent, _, theirs = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(theirs) == sid and state not in "ZX":
                parent_by_pid[int(entry)] = int(parent)
    return parent_by_pid


def is_helper(pid, parent, processes):
    """Whether it is the fork server, which looks up only when it has imported all, or what waits for that one's end."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return True  # it has just ended
    helpers = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
    ending = not command  # its memory is gone already
    return ending or (parent not in processes and any(name in command for name in helpers))


def shared_memory(pids):
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return [name for name in names if {str(pid) for pid in pids} & set(name.replace("-", "_").split("_"))]


def end(nursery, variant, number, moment_s, *, together=False):
    """Start a run, send it a signal, check that nothing is left, and return its exit code and output."""
    pid = nursery.start(variant)
    time.sleep(moment_s)
    pids = session(pid)
    (os.killpg if together else os.kill)(pid, number)
    code = nursery.wait()
    ended_at = time.monotonic()
    seen_at = {}
    while remaining := session(pid):
        now = time.monotonic()
        late = []
        for process_id, parent in remaining.items():
            helper = is_helper(process_id, parent, remaining)
            # a fork server may start a worker late
            since = ended_at if helper else seen_at.setdefault(process_id, now)
            late += [process_id] if now - since > (IMPORTING_S if helper else WITHIN_S) else []
        assert not late, f"{variant} after {moment_s} s left {late} of {remaining}"
        time.sleep(0.01)
    assert shared_memory([pid, *pids]) == []
    return code, nursery.stderr.read_text()


def moments(variant, draw, count):
    """Return random times, as many within the first tenth as in the rest."""
    return [variant.seconds * draw.random() * draw.choice([0.1, 1.0]) for _ in range(count)]


def check_interrupts(nursery, variant, seed, count):
    draw = random.Random(seed)
    for moment_s in moments(variant, draw, count):
        together = variant.together and draw.random() < 0.5
        code, printed = end(nursery, variant, signal.SIGINT, moment_s, together=together)
        if code == 0 and LOST_BY_PYTHON.search(printed):
            continue  # it came in a callback of Python's own, which prints and loses whatever is raised in it
        assert code == -signal.SIGINT, (variant, moment_s, printed)
        assert printed.splitlines().count("KeyboardInterrupt") == 1, (variant, moment_s, printed)
        for trace in ("lit_loader-worker", "Exception ignored", "DataLoader worker", "resource_tracker"):
            assert trace not in printed, (variant, moment_s, printed)


def check_kills(nursery, variant, seed, count, number):
    for moment_s in moments(variant, random.Random(seed), count):
        code, printed = end(nursery, variant, number, moment_s)
        assert code == -number, (variant, moment_s, printed)
        # a fork server's child that is being started prints that its parent hung up, before our code begins
        trace = "lit_loader" if "multiprocessing_context" in variant.arguments else "Traceback"
        assert trace not in printed, (variant, moment_s, printed)


EACH = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: f"{variant.ending} {variant.arguments}")


@EACH
def test_ctrl_c_at_a_random_moment_ends_everything_with_one_traceback(nursery, variant):
    check_interrupts(nursery, variant, 1, 2)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(variant, marks=pytest.mark.soak if "multiprocessing_context" in variant.arguments else ())
        for variant in VARIANTS
    ],
    ids=lambda variant: f"{variant.ending} {variant.arguments}",
)
def test_kill_at_a_random_moment_ends_everything(nursery, variant):
    check_kills(nursery, variant, 2, 2, signal.SIGKILL)


@pytest.mark.parametrize("variant", [VARIANTS[2], VARIANTS[3]], ids=["processes", "threads"])
def test_termination_ends_everything(nursery, variant):
    check_kills(nursery, variant, 3, 2, signal.SIGTERM)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@EACH
class TestTwoHundredMoments:
    def test_ctrl_c_leaves_nothing(self, nursery, variant):
        check_interrupts(nursery, variant, 4, 34)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_kill_leaves_nothing(self, nursery, variant, number):
        check_kills(nursery, variant, int(number), 34, number)
