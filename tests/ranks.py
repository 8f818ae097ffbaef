"""Two processes on this machine that train together, under every kind of parallelism."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from dtr_fx import measure_peak

WIDTH, ROWS = 32, 512
Compile = Callable[[nn.Module], nn.Module]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def ddp_outside(blocks: nn.Sequential, compiled: Compile) -> nn.Module:
    return DistributedDataParallel(compiled(blocks))


def ddp_inside(blocks: nn.Sequential, compiled: Compile) -> nn.Module:
    return compiled(DistributedDataParallel(blocks))


def fsdp1(blocks: nn.Sequential, compiled: Compile) -> nn.Module:
    return compiled(FullyShardedDataParallel(blocks, use_orig_params=True, device_id=torch.device("cpu")))


def fsdp2_by_block(blocks: nn.Sequential, compiled: Compile) -> nn.Module:
    for block in blocks:
        compiled(block)
        fully_shard(block)
    return fully_shard(blocks)


def tensor_parallel(blocks: nn.Sequential, compiled: Compile) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for block in blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return compiled(blocks)


def compiling_with(backend: str | None, options: dict[str, Any] | None) -> Compile:
    """What compiles a module in place; not at all without a backend."""

    def compiled(module: nn.Module) -> nn.Module:
        if backend is not None:
            module.compile(backend=backend, options=None if options is None else dict(options))
        return module

    return compiled


def steps(rank: int, stack: Any, backend: str | None, options: dict[str, Any] | None) -> Any:
    """Losses and parameters after three steps, the highest peak of two above parameters, and their bytes."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block() for _ in range(3)))
    model = stack(blocks, compiling_with(backend, options))

    def step(x: Tensor) -> list[float]:
        loss = model(x).square().mean()
        loss.backward()
        return [loss.item()]

    return _trained(model, step, seed=rank + 1)


def refused(rank: int, stack: Any, budget: str) -> tuple[str, str]:
    """The error of a step in which rank 1 has eight times as many rows as rank 0, or nothing."""
    torch._dynamo.reset()
    blocks = nn.Sequential(*(Block() for _ in range(3)))
    options = {"budget": budget, "planner": "online", "slices": "off", "cache": False}
    model = stack(blocks, compiling_with("dtr", options))
    try:
        model(torch.randn(ROWS * (1 + 7 * rank), WIDTH)).sum().backward()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def pipeline(rank: int, schedule: Any, backend: str | None, options: dict[str, Any] | None) -> Any:
    """The same of a pipeline: each rank has three blocks, and four micro-batches are on their way."""
    torch._dynamo.reset()
    torch.manual_seed(rank)
    blocks = nn.Sequential(*(Block() for _ in range(3)))
    stage = PipelineStage(compiling_with(backend, options)(blocks), rank, 2, torch.device("cpu"))
    made = schedule(stage, 4, loss_fn=nn.functional.mse_loss)

    def step(x: Tensor) -> list[float]:
        losses: list[Tensor] = []
        if stage.is_first:
            made.step(x)
        else:
            made.step(target=x, losses=losses)
        return [loss.item() for loss in losses]

    return _trained(blocks, step, seed=1)


def _trained(model: nn.Module, step: Callable[[Tensor], list[float]], seed: int) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(seed)
    losses: list[float] = []
    peaks = []
    for _ in range(3):
        x = torch.randn(ROWS, WIDTH)
        peaks.append(measure_peak(lambda x=x: losses.extend(step(x))))
        optimizer.step()
        optimizer.zero_grad()
    parameters = list(model.parameters())
    held = sum((each.to_local() if isinstance(each, DTensor) else each).nbytes for each in parameters)
    found = [each.full_tensor() if isinstance(each, DTensor) else each for each in parameters]
    return losses, [each.detach().numpy() for each in found], max(peaks[1:]), held


def run(rank: int, port: int, work: Callable[..., Any], arguments: Any, results: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    try:
        results.put(work(rank, *arguments))
    except Exception as error:
        results.put(error)
    dist.destroy_process_group()


def of_both_ranks(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=run, args=(rank, port, work, arguments, results)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    found = []
    for _ in processes:
        found.append(results.get(timeout=300))
        if isinstance(found[-1], Exception):  # the other waits for it
            for process in processes:
                process.kill()
            raise found[-1]
    for process in processes:
        process.join()
    return found


def is_same(found: Any, expected: Any) -> bool:
    """Losses and parameters, bit for bit."""
    return found[0] == expected[0] and all((a == b).all() for a, b in zip(found[1], expected[1]))
