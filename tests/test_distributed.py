"""Two processes under DistributedDataParallel: the same gradients as without dtr, in both of them."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)


def train(rank: int, port: int, backend: str, options: dict[str, Any] | None, results: Any) -> None:
    """Two steps, each process on batches of its own; gradients and recomputes go to ``results``."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())))
    recomputes: list[int] = []
    if options is not None:
        options = {**options, "on_report": lambda report: recomputes.append(report.recomputes)}
    step = DistributedDataParallel(torch.compile(model, backend=backend, options=options))
    torch.manual_seed(rank + 1)
    for _ in range(2):
        model.zero_grad()
        step(torch.randn(512, 64)).square().mean().backward()
    results.put((rank, [parameter.grad.numpy() for parameter in model.parameters()], recomputes))
    dist.destroy_process_group()


def trained(backend: str, options: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """What each of the two processes came to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=train, args=(rank, port, backend, options, results)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return sorted(found, key=lambda result: result[0])


@pytest.mark.parametrize(("executor", "reference"), [("eager", "aot_eager"), ("inductor", "inductor")])
def test_gradients_are_those_without_dtr(executor, reference):
    expected = trained(reference)
    found = trained("dtr", {"budget": "60%", "executor": executor})
    for (_, ours, recomputes), (_, theirs, _) in zip(found, expected):
        assert recomputes[0] > 0
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(torch.from_numpy(a), torch.from_numpy(b), rtol=0, atol=0)
