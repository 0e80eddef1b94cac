"""Sums over the processes of a group, with gradients."""

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:  # some builds of torch lack them
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Group", "process_group", "sum_over_ranks"]

Group: TypeAlias = "ProcessGroup | DeviceMesh"


def process_group(group: Group) -> "ProcessGroup":
    """Return the process group of a mesh of one dimension, or the group itself."""
    if isinstance(group, dist.ProcessGroup):
        return group
    if not isinstance(group, dist.device_mesh.DeviceMesh):
        raise ValueError(f"group must be a process group or a device mesh, got {group!r}")
    if group.ndim != 1:
        raise ValueError(f"group must be a mesh of one dimension, got {group.ndim}: slice it first")
    return group.get_group()


def sum_over_ranks(x: Tensor, group: "ProcessGroup") -> Tensor:
    """Add up the x of all ranks; every rank gets the sum.

    The gradient is that of the sum of all ranks' losses, by a reduction that every rank must run.
    """
    return _AllReduce.apply(x, group)


class _AllReduce(torch.autograd.Function):
    # torch deprecates torch.distributed.nn.functional.all_reduce.
    @staticmethod
    def forward(x: Tensor, group: "ProcessGroup") -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: "tuple[Tensor, ProcessGroup]", output: Tensor) -> None:
        ctx.group = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return sum_over_ranks(grad, ctx.group), None
