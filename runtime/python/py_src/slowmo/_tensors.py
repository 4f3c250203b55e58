"""Describes tensors for the extension: name, address, bytes from there to the end of its memory,
shape, type, device, the device's stream, whether it is one block in row-major order, and the owner
of the memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

#: One tensor, as `_slowmo` takes it.
Described: TypeAlias = tuple[str, int, int, tuple[int, ...], str, str, int, bool, object]
#: Tensors in a fixed order: themselves, pairs of name and tensor, or a mapping from names.
Tensors: TypeAlias = Iterable[Any] | Mapping[str, Any]


def describe(tensors: Tensors) -> list[Described]:
    """Describes tensors of PyTorch, or arrays that have NumPy's array interface.

    The descriptions hold the tensors' storages, so that these stay allocated while they are lent.
    """
    pairs: Iterable[Any] = tensors.items() if isinstance(tensors, Mapping) else tensors
    described = []
    for index, item in enumerate(pairs):
        name, tensor = item if isinstance(item, tuple) else (f"tensor {index}", item)
        described.append(_tensor(name, tensor))
    return described


def _tensor(name: str, tensor: Any) -> Described:
    if not hasattr(tensor, "data_ptr"):
        return _array(name, tensor)
    kind = str(tensor.dtype).removeprefix("torch.")
    device = str(tensor.device)
    # A tensor of another layout (sparse, quantized) has neither an address nor one storage.
    strided = str(tensor.layout) == "torch.strided" and device.split(":")[0] != "meta"
    contiguous = strided and tensor.is_contiguous()
    address = tensor.data_ptr() if contiguous else 0
    owner = tensor.untyped_storage() if strided else None
    # A storage may have become smaller than the tensors that share it.
    left = owner.nbytes() - tensor.storage_offset() * tensor.element_size() if owner else 0
    shape = tuple(tensor.shape)
    return name, address, max(left, 0), shape, kind, device, _stream(tensor), contiguous, owner


def _stream(tensor: Any) -> int:
    """The stream on which PyTorch works with the tensor now; 0 in main memory."""
    if tensor.device.type != "cuda":
        return 0
    import torch

    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _array(name: str, array: Any) -> Described:
    interface: dict[str, Any] | None = getattr(array, "__array_interface__", None)
    if interface is None:
        raise TypeError(
            f"tensor {name} is a {type(array).__name__}: lend tensors of PyTorch, or NumPy arrays"
        )
    address, read_only = interface["data"]
    if read_only:
        raise TypeError(f"tensor {name} is read-only: lend an array that can be written")
    typestr = interface["typestr"]
    kind = "float32" if typestr in ("<f4", "=f4") else typestr
    contiguous = interface.get("strides") is None
    shape = tuple(interface["shape"])
    # NumPy resizes no array that anything refers to.
    return name, address, array.nbytes, shape, kind, "cpu", 0, contiguous, array
