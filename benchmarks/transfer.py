"""Transfer to the GPU: rates of copies, training steps fed by loaders, and a race test.

Needs a GPU; without one it only prints a message. ``python -m benchmarks.transfer --rounds 5``
"""

from __future__ import annotations

import contextlib
import mmap
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.rounds import Pass, compare, judge, run
from lit_loader import DataLoader
from lit_loader.loader.device import CudaPageLock, DeviceStreams, PendingTransfer

BATCH = 64
NUM_BATCHES = 60
STEP_S = 0.02
WORKERS: dict[str, Any] = {"batch_size": BATCH, "num_workers": 4, "persistent_workers": True}
RACE_BATCHES = 100_000
RACE_BATCH = 4
# Batches of 12 KB, by pipe, to 480 KB, in slots.
RACE_SIZES = (32, 200, 64, 80, 33, 128, 48)
CONTROL_BATCHES = 5_000
# About two milliseconds.
SIDE_CYCLES = 4_000_000


class Images(Dataset[Tensor]):
    """uint8 images, each in its own memory."""

    def __init__(self) -> None:
        self.image = torch.randint(0, 256, (3, 224, 224), dtype=torch.uint8)

    def __len__(self) -> int:
        return BATCH * NUM_BATCHES

    def __getitem__(self, index: int) -> Tensor:
        return self.image.clone()


class Numbered(Dataset[tuple[Tensor, int]]):
    """Samples filled with one number, which shows whether they arrived unchanged.

    Batches of `RACE_BATCH` consecutive samples have varying sizes.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = index % 251
        size = RACE_SIZES[index // RACE_BATCH % len(RACE_SIZES)]
        return torch.full((3, size, size), number, dtype=torch.uint8), number


def copying(source: Tensor, *, times: int = 20) -> Pass:
    """Return a pass that copies memory to the GPU; the unit is GB."""

    def work() -> Any:
        for _ in range(times):
            source.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        return times * source.nbytes / 1e9

    return work


def locked_slot(batch: Tensor) -> Tensor:
    """Copy a batch to shared memory that is page-locked like the slots of worker processes."""
    # Anonymous shared memory, as slots have.
    memory = mmap.mmap(-1, batch.nbytes)
    slot_batch = torch.frombuffer(memory, dtype=torch.uint8).view(batch.dtype).view(batch.shape)
    slot_batch.copy_(batch)
    if not CudaPageLock(torch.device("cuda")).lock(slot_batch.data_ptr(), slot_batch.nbytes):
        raise RuntimeError("memory cannot be page-locked here; see the warning above")
    return slot_batch


def a_step() -> Callable[[Tensor], None]:
    """Return a training step of about `STEP_S` on this GPU that first reads its batch."""
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def multiply(times: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        state = weight
        for _ in range(times):
            state = (state @ weight).clamp_(-1, 1)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    multiply(50)
    times = max(1, round(STEP_S / (multiply(200) / 200)))

    def step(batch: Tensor) -> None:
        state = weight + batch.float().mean().to(torch.bfloat16)
        for _ in range(times):
            state = (state @ weight).clamp_(-1, 1)

    return step


def steps(step: Callable[[Tensor], None], batches: Callable[[], Any]) -> Pass:
    """Return a pass of one epoch of steps."""

    def work() -> int:
        count = 0
        for batch in batches():
            step(batch.to("cuda", non_blocking=True))
            count += 1
        torch.cuda.synchronize()
        return count

    return work


def feeding() -> dict[str, Pass]:
    """Return epochs of steps that are fed from GPU memory and by loaders."""
    cached = torch.zeros(BATCH, 3, 224, 224, dtype=torch.uint8, device="cuda")
    ours: Any = DataLoader
    pinned = {"pin_memory": True, **WORKERS}
    loaders: dict[str, Any] = {
        "torch, pin_memory": TorchDataLoader(Images(), **pinned),
        "ours, pin_memory": ours(Images(), seed=0, **pinned),
        "ours, device": ours(Images(), seed=0, device="cuda", **pinned),
        "ours, device, not page-locked": ours(Images(), seed=0, device="cuda", **WORKERS),
    }
    # The same for all.
    step = a_step()
    step_passes = {"cached batch": steps(step, lambda: (cached for _ in range(NUM_BATCHES)))}
    return step_passes | {name: steps(step, partial(_itself, loader)) for name, loader in loaders.items()}


def _itself(loader: Any) -> Any:
    return loader


def _nothing(*_: Any) -> None:
    pass


CONTROLS: dict[str, tuple[type, str, Any]] = {
    "sources released at once": (PendingTransfer, "is_done", True),
    "no wait for the copy": (DeviceStreams, "wait_event", _nothing),
    "no record_stream": (DeviceStreams, "record_stream", _nothing),
}
"""Attributes whose replacement disables a safeguard. `race` must then find wrong values, else it proves nothing."""


def race(
    num_batches: int = RACE_BATCHES, *, own_stream: bool, pin_memory: bool = True, device: str | None = "cuda"
) -> int:
    """Return the number of samples that arrive on the GPU with wrong values, with random delays of both streams.

    Args:
        num_batches: Number of batches to check.
        own_stream: Whether the consumer copies them itself on its own stream and drops each at once.
        pin_memory: The loader's argument.
        device: The GPU, or None to run the same steps on the CPU.
    """
    chance = random.Random(0)
    side_chance = random.Random(1)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    alive: list[Any] = []
    cuda: Any = torch.cuda
    copy_to_device = DeviceStreams.copy_to_device

    def copy_late(streams: DeviceStreams, tensor: Tensor) -> Tensor:
        if side_chance.random() < 0.05:
            # On the side stream, before the copy.
            cuda._sleep(side_chance.randrange(SIDE_CYCLES))
        return copy_to_device(streams, tensor)

    settings: dict[str, Any] = {"batch_size": RACE_BATCH, "num_workers": 4, "pin_memory": pin_memory}
    settings |= {} if own_stream else {"device": device}
    context: Any = cuda.stream(cuda.Stream()) if own_stream and device else contextlib.nullcontext()
    loader_class: Any = DataLoader
    late = patch.object(DeviceStreams, "copy_to_device", copy_late)
    with late, loader_class(Numbered(RACE_BATCH * num_batches), seed=0, **settings) as loader, context:
        for images, numbers in loader:
            if device and chance.random() < 0.1:
                # About a millisecond.
                cuda._sleep(chance.randrange(2_000_000))
            if chance.random() < 0.01:
                # Workers have to wait for slots.
                time.sleep(0.002)
            # on the user's own stream the batch is dropped here
            images = images.to(device, non_blocking=True) if device else images
            numbers = numbers.to(device, non_blocking=True) if device else numbers
            wrong += (images != numbers.to(torch.uint8).view(-1, 1, 1, 1)).sum()
            alive = [*alive, images][-chance.randrange(1, 4) :]
        if device:
            cuda.synchronize()
    return int(wrong)


def main(rounds: int) -> None:
    """Compare copies with the limit of the bus, and steps with those on a cached batch; look for races."""
    if not torch.cuda.is_available():
        print("benchmarks.transfer needs a GPU, and this machine has none: nothing was measured")
        return
    batch = torch.stack([Images()[0]] * BATCH)
    contenders = {
        "the bus: 256 MB, pinned by torch": copying(torch.empty(1 << 28, dtype=torch.uint8).pin_memory()),
        "a batch, pinned by torch": copying(batch.pin_memory()),
        "a batch in a page-locked slot": copying(locked_slot(batch)),
        "a batch, not page-locked": copying(batch),
    }
    figures = compare("copies to the GPU", contenders, rounds=rounds, unit="GB")
    bus, *_ = contenders
    judge(
        "page-locked slots, of the bus's rate", figures.rate_ratio("a batch in a page-locked slot", bus), at_least=0.9
    )
    figures = compare(f"steps of {STEP_S * 1e3:.0f} ms", feeding(), rounds=rounds, unit="step")
    judge("a step fed by the loader", figures.ratio("ours, device", "cached batch"), at_most=1.03)
    for own_stream in (False, True):
        begin = time.perf_counter()
        wrong = race(own_stream=own_stream)
        verdict = "met" if wrong == 0 else "MISSED"
        how = "copied on the user's own stream" if own_stream else "copied by the loader"
        took_s = time.perf_counter() - begin
        print(f"  -> race, {how}: {wrong} wrong values in {RACE_BATCHES} batches, {took_s:.0f} s: {verdict}")
    for name, (owner, attribute, replacement) in CONTROLS.items():
        with patch.object(owner, attribute, replacement):
            wrong = race(CONTROL_BATCHES, own_stream=False)
        print(f"  -> control, {name}: {wrong} wrong values are noticed: {'met' if wrong else 'MISSED'}")


if __name__ == "__main__":
    run(main, rounds=5)
