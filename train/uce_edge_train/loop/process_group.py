"""Distributed training with the processes of `torchrun`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from uce_edge.errors import UceEdgeError, UsageError
from uce_edge_train.choices import TrainDevice


@dataclass(frozen=True)
class Group:
    """This process, its device, and how many there are."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This process's part of a batch."""
        return batch[self.rank :: self.size]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose gradients are averaged over the processes."""
        if self.size == 1:
            return model
        if self.device.type == "cuda":
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return nn.parallel.DistributedDataParallel(model)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the processes, in place."""
        if self.size > 1:
            distributed.all_reduce(values)
            values /= self.size
        return values

    def from_leader(self, values: list[float]) -> list[float]:
        """Broadcast the leader's numbers."""
        if self.size == 1:
            return values
        sent = torch.tensor(values, dtype=torch.float64 if self.device.type != "mps" else torch.float32)
        sent = sent.to(self.device)
        distributed.broadcast(sent, src=0)
        return [float(value) for value in sent.cpu()]


@contextmanager
def join(device: TrainDevice = TrainDevice.AUTO) -> Iterator[Group]:
    """Join the processes of torchrun, or train alone.

    Args:
        device: Where this process trains.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = pick(device, local)
    if size == 1:
        yield Group(chosen)
        return
    if chosen.type == "mps":
        raise UsageError("Several processes cannot share mps. Use --device cpu, or one process.", "device.not-shared")
    distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Group(chosen, rank, size)
    finally:
        distributed.destroy_process_group()


def pick(name: TrainDevice, local: int = 0) -> torch.device:
    """Resolve the name of a device."""
    available = {
        TrainDevice.CUDA: torch.cuda.is_available(),
        TrainDevice.MPS: torch.backends.mps.is_available(),
        TrainDevice.CPU: True,
    }
    if name is TrainDevice.AUTO:
        name = next(kind for kind, there in available.items() if there)
    if not available[name]:
        raise UceEdgeError(
            f"This machine, or this build of torch, has no {name}. Use --device cpu or --device auto.", "device.missing"
        )
    if name is TrainDevice.CUDA:
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device(str(name))
