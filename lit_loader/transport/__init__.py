"""How a batch gets from a worker process to the main one: frames on a pipe, objects as frames."""

from __future__ import annotations

from lit_loader.transport.frames import Buffer, Frame, FrameReader, FrameWriter
from lit_loader.transport.pickled import decode, encode

__all__ = ["Buffer", "Frame", "FrameReader", "FrameWriter", "decode", "encode"]
