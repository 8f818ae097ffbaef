"""Tensors of ``card:0`` to the host and back, by the tier of the option ``offload``; prints what it saw."""

from __future__ import annotations

from typing import Any

import card
import torch
from torch.overrides import TorchFunctionMode

from dtr_fx.tiers.pinned import Pinned
from dtr_fx.tiers.tier import Tier


class Unpinned(TorchFunctionMode):
    """All memory of the host is as good as pinned to a card that is in it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(
            *args, **{name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        )


def main() -> None:
    module = card.install()
    tier = Tier("host")
    assert tier is not None
    pinned = Pinned(tier)
    expected = torch.randn(1000, 3)
    tensor = expected.to(card.NAME)
    with Unpinned():
        slot = pinned.offload(tensor)
    pinned.wait_offload(slot)
    held = module.memory_allocated()
    del tensor
    assert module.memory_allocated() == held - 12_288, "the tensor's blocks of 512 bytes are free"
    back = torch.empty(1000, 3, device=card.NAME)
    pinned.reload(slot, back)
    pinned.wait_reload(slot, back)
    print("same" if back.cpu().equal(expected) else "not the same")
    del slot
    print("freed" if pinned.usage().now == 0 else "held")


if __name__ == "__main__":
    main()
