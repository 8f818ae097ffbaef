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


def train(rank: int, port: int, reference: str, options: dict[str, Any], results: Any) -> None:
    """Without dtr, then with it: gradients of both and dtr's recomputes go to ``results``."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    recomputes: list[int] = []
    options = {**options, "on_report": lambda report: recomputes.append(report.recomputes)}
    results.put((gradients(rank, reference, None), gradients(rank, "dtr", options), recomputes))
    dist.destroy_process_group()


def gradients(rank: int, backend: str, options: dict[str, Any] | None) -> list[Any]:
    """Those of the second step, each process on batches of its own."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())))
    step = DistributedDataParallel(torch.compile(model, backend=backend, options=options))
    torch.manual_seed(rank + 1)
    for _ in range(2):
        model.zero_grad()
        step(torch.randn(512, 64)).square().mean().backward()
    return [parameter.grad.numpy() for parameter in model.parameters()]


def trained(reference: str, options: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What each of the two processes came to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=train, args=(rank, port, reference, options, results)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return found


@pytest.mark.parametrize(("executor", "reference"), [("eager", "aot_eager"), ("inductor", "inductor")])
def test_gradients_are_those_without_dtr(executor, reference):
    for expected, found, recomputes in trained(
        reference, {"budget": "60%", "executor": executor, "plan_seconds": 0.05}
    ):
        assert recomputes[0] > 0
        for a, b in zip(found, expected):
            torch.testing.assert_close(torch.from_numpy(a), torch.from_numpy(b), rtol=0, atol=0)
