"""Work that would let the host wait for a device, found without a device: on tensors of torch's meta device."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")


class NoSync(TorchDispatchMode):
    """Refuses operations that read values of a device's tensor on the host, or copy between the host and a device.

    Reading a value of a meta tensor raises an error, also where an operation's shape depends on values.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        large = {tensor.device.type for tensor in tensors if tensor.ndim}
        is_copy = str(func) in ("aten._to_copy.default", "aten.copy_.default")
        if is_copy and {"cpu", "meta"} <= {tensor.device.type for tensor in tensors}:
            raise AssertionError(f"{func} copies between the host and the device")
        assert large <= {"cpu"} or large <= {"meta"}, f"{func} works on tensors of two devices"
        return result
