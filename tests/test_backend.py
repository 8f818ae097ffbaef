"""What ``backend="dtr"`` is given beside plain modules: whatever ``aot_eager`` trains, with the same results.

Every job runs at 100% and at the smallest budget that works; see ``steps``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import Between, Function, Job, Make, between, chain, check, job
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from dtr_fx import DTRError, GraphError

WIDTH = 32


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def real(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def rows() -> Tensor:
    return real(64, WIDTH)


class Buffered(nn.Module):
    """A module with one layer and one buffer; subclasses say what they do with them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()
        self.register_buffer("seen", torch.ones(WIDTH))


# --- custom operators --------------------------------------------------------------------------------------


@torch.library.custom_op("dtr_fx_test::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return x.sin()


sine.register_fake(torch.empty_like)
sine.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("dtr_fx_test::multiples", mutates_args=())
def multiples(x: Tensor, count: int) -> list[Tensor]:
    return [x * factor for factor in range(count)]


multiples.register_fake(lambda x, count: [torch.empty_like(x) for _ in range(count)])
multiples.register_autograd(
    lambda ctx, gradients: (sum(k * gradient for k, gradient in enumerate(gradients)), None)
)


@torch.library.custom_op("dtr_fx_test::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    """It draws random numbers, and does not say so."""
    return x + torch.rand_like(x)


noisy.register_fake(torch.empty_like)
noisy.register_autograd(lambda ctx, gradient: gradient)


@torch.library.custom_op("dtr_fx_test::accumulate", mutates_args={"total"})
def accumulate(total: Tensor, x: Tensor) -> Tensor:
    total.mul_(0.9).add_(x.sum(0))
    return total * 2


accumulate.register_fake(lambda total, x: torch.empty_like(total))


def custom_mutating() -> Job:
    class Model(Buffered):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = chain(self.layer(x))
            return chain(y * accumulate(self.seen, y.detach())), self.seen

    return between(Model(), rows())


def custom_random() -> Job:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        # Squares: the sum is noise again, which only a recomputation from the same state brings back.
        return chain(noisy(chain(layer(x))).square())

    return between(Function(function, linear()), rows())


def autograd_function() -> Job:
    class Doubled(torch.autograd.Function):
        """AOTAutograd does not say in which pass the operators of its backward formula run."""

        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            context.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            (x,) = context.saved_tensors
            return 2 * gradient * x.cos()

    def function(x: Tensor, layer: nn.Module) -> Tensor:
        return Doubled.apply(layer(Doubled.apply(chain(layer(Doubled.apply(layer(x)))))))

    return job(Function(function, linear()), rows())


def backward_that_writes() -> Job:
    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor, seen: Tensor) -> Tensor:
            context.save_for_backward(x, seen)
            return x.sin()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
            x, seen = context.saved_tensors
            seen.add_(gradient.sum(0))
            return gradient * x.cos(), None

    class Model(Buffered):
        def forward(self, x: Tensor) -> Tensor:
            return Counting.apply(chain(self.layer(x)), self.seen)

    return between(Model(), rows())


CUSTOM: dict[str, Make] = {
    "pure": lambda: between(Function(lambda x, layer: sine(layer(x)), linear()), rows()),
    "several outputs": lambda: between(
        Function(lambda x, layer: sum(multiples(chain(layer(x)), 3)), linear()), rows()
    ),
    "mutating": custom_mutating,
    "random": custom_random,
    "autograd function": autograd_function,
    "backward that writes": backward_that_writes,
}


# --- control flow, checkpoints, graph breaks ---------------------------------------------------------------


def conditional() -> Job:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        y = chain(layer(x))
        y = torch.cond(y.sum() > 0, lambda y: F.dropout(y.sin(), 0.5), lambda y: y.cos().exp(), (y,))
        return F.dropout(y, 0.2)

    return between(Function(function, linear()), rows())


def block() -> nn.Module:
    return nn.Sequential(linear(), nn.GELU(), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), linear())


def checkpointed(**kwargs: Any) -> Job:
    def function(x: Tensor, block: nn.Module) -> Tensor:
        return checkpoint(block, checkpoint(block, x, **kwargs), **kwargs)

    return between(Function(function, block()), rows())


def selectively_checkpointed() -> Job:
    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = operator == torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpointed(use_reentrant=False, context_fn=contexts)


def broken_in_two() -> Job:
    def function(x: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
        y = chain(first(x))
        torch._dynamo.graph_break()
        return chain(second(y))

    return between(Function(function, linear(), block()), rows())


def broken_by_data() -> Job:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        y = chain(layer(x))
        scale = y.detach().abs().sum().item()
        return chain(y[y > 0] / scale)

    return between(Function(function, linear()), rows())


def sized_by_data() -> Job:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        y = chain(layer(x))
        return chain(y[y.detach() > 0.2]) * y.detach().max().item()

    return between(Function(function, linear()), rows())


FLOW: dict[str, Make] = {
    "cond": conditional,
    "checkpoint": functools.partial(checkpointed, use_reentrant=False),
    "reentrant checkpoint": functools.partial(checkpointed, use_reentrant=True),
    "selective checkpoint": selectively_checkpointed,
    "graph break": broken_in_two,
    "graph break on data": broken_by_data,
}


# --- randomness --------------------------------------------------------------------------------------------


def every_random_operator() -> Job:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        y = chain(layer(x))
        y = F.dropout(y, 0.4) + torch.rand_like(y) * torch.randn(WIDTH)
        y = chain(y) * torch.bernoulli(torch.full_like(y, 0.5))
        return chain(y[torch.randperm(len(y))]) * torch.randint(3, (WIDTH,))

    return between(Function(function, linear()), real(512, WIDTH))


def noise_returned() -> Job:
    def function(x: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
        noise = torch.rand(256, WIDTH)
        return chain(layer(x)) * noise, noise

    return between(Function(function, linear()), real(256, WIDTH))


def own_generator() -> Job:
    generator = torch.Generator().manual_seed(3)

    def function(x: Tensor, layer: nn.Module) -> Tensor:
        return chain(layer(x)) * torch.rand(64, WIDTH, generator=generator)

    return between(Function(function, linear()), rows())


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)


RANDOM: dict[str, Make] = {
    "every operator": every_random_operator,
    "noise returned": noise_returned,
    "own generator": own_generator,
    "attention": lambda: between(Function(attention), *(real(2, 2, 32, 16) for _ in range(3))),
}


# --- inputs that change, outputs that alias ----------------------------------------------------------------


def running_mean() -> Job:
    class Model(Buffered):
        def forward(self, x: Tensor) -> Tensor:
            y = chain(self.layer(x))
            self.seen.mul_(0.5).add_(y.detach().mean(0))
            return y * self.seen.cos()

    return between(Model(), rows())


def written_through_a_view() -> Job:
    def function(state: Tensor, x: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
        y = chain(layer(x))
        state.view(-1)[8 : 8 + WIDTH].copy_(y.detach().mean(0))
        return y * state[0], state.t()

    return between(Function(function, linear()), torch.ones(4, WIDTH), rows())


def written_and_returned() -> Job:
    def function(state: Tensor, x: Tensor, layer: nn.Module) -> tuple[Tensor, ...]:
        y = chain(layer(x))
        state.add_(y.detach().mean(0))
        return state, y, state.view(2, -1)

    return between(Function(function, linear()), torch.ones(WIDTH), rows())


def written_beside_an_overlapping_input() -> Job:
    def function(written: Tensor, read: Tensor, x: Tensor, layer: nn.Module) -> Tensor:
        written.add_(1)
        return chain(layer(x)) * read.sum()

    memory = torch.ones(100)
    return between(Function(function, linear()), memory[:40], memory[20:60], rows())


def written_in_place_inside() -> Job:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        y = layer(x)
        y.mul_(2)
        y[:, 0] = 0
        y.view(-1)[::2].add_(1)
        return torch.zeros(64, WIDTH).copy_(chain(y))

    return between(Function(function, linear()), rows())


def aliases() -> Job:
    def function(x: Tensor, layer: nn.Module) -> tuple[Tensor, ...]:
        y = chain(layer(x))
        return x, x.view(-1), x[1:], y, y.t(), y.view(-1), y[1:], y, layer.weight

    return job(Function(function, linear()), rows())


def unused_and_detached() -> Job:
    def function(x: Tensor, used: nn.Module, unused: nn.Module) -> tuple[Tensor, ...]:
        y = chain(used(x))
        return chain(y), y.detach().cos(), x.new_zeros(3)

    return between(Function(function, linear(), linear()), rows())


STATE: dict[str, Make] = {
    "running mean": running_mean,
    "written through a view": written_through_a_view,
    "written and returned": written_and_returned,
    "written beside an overlapping input": written_beside_an_overlapping_input,
    "written in place inside": written_in_place_inside,
    "aliases": aliases,
    "unused and detached": unused_and_detached,
}


def read_then_written_buffer() -> Job:
    class Model(Buffered):
        def forward(self, x: Tensor) -> Tensor:
            y = chain(self.layer(x) * self.seen.sin())
            self.seen.mul_(0.5).add_(y.detach().mean(0))
            return y * self.seen.cos()

    return between(Model(), rows())


def read_then_written_input() -> Job:
    def function(state: Tensor, x: Tensor, layer: nn.Module) -> Tensor:
        y = layer(x) * state.cos()
        state.add_(1)
        z = chain(y) * state.sin()
        state.mul_(2)
        return z * state.sin()

    return between(Function(function, linear()), torch.ones(WIDTH), rows())


def read_then_written_by_an_operator() -> Job:
    class Model(Buffered):
        def forward(self, x: Tensor) -> Tensor:
            y = chain(self.layer(x) * self.seen.sin())
            accumulate(self.seen, y.detach())
            return y * self.seen.cos()

    return between(Model(), rows())


READ_THEN_WRITTEN: dict[str, Make] = {
    "buffer": read_then_written_buffer,
    "input": read_then_written_input,
    "by a custom operator": read_then_written_by_an_operator,
}


# --- values of every kind ----------------------------------------------------------------------------------


def spectrum(x: Tensor, layer: nn.Module) -> Tensor:
    return torch.fft.ifft(torch.fft.fft(chain(layer(x))).exp() * 1j).abs()


def nested_outputs() -> Job:
    def function(x: Tensor, layer: nn.Module) -> dict[str, Any]:
        y = chain(layer(x))
        return {"a": None, "b": (chain(y), None), "c": [None, 3, "text", True, 1.5, x.shape[0]]}

    return between(Function(function, linear()), rows())


def named_inputs() -> Job:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = linear()

        def forward(self, *, batch: dict[str, Tensor], scale: float | None = None) -> dict[str, Tensor]:
            y = chain(self.layer(batch["x"])) * (scale or 1.0)
            return {"loss": chain(y).mean(), "x": batch["x"]}

    return between(Model(), batch={"x": rows()}, scale=2.0)


def quantised(x: Tensor, layer: nn.Module) -> tuple[Tensor, ...]:
    y = chain(layer(x))
    integers = (y * 10).to(torch.int8)
    return y * integers, integers, y.argmax(1), y > 0


def in_several_types() -> Job:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        return chain(chain(chain(layer(x.double())).bfloat16()).float())

    return between(Function(function, linear().double()), rows())


def in_autocast() -> Job:
    def function(x: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.layer_norm(second(chain(first(x))).float(), (WIDTH,))

    return between(Function(function, linear(), linear()), rows())


def sorted_rows(x: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
    values, indices = chain(layer(x)).topk(3)
    ordered, _ = chain(layer(x)).sort()
    return values * ordered[:, :3], indices


def in_chunks(x: Tensor, layer: nn.Module) -> Tensor:
    left, right = chain(layer(x)).chunk(2, 1)
    narrow, wide = torch.split(left.exp(), [1, WIDTH // 2 - 1], 1)
    return (left * right).sum(0) + wide.sum() + torch.unbind(right, 1)[2].sum() + narrow.mean()


def decomposed(x: Tensor, layer: nn.Module) -> Tensor:
    square = layer(x) @ layer(x).mT + 8 * torch.eye(len(x))
    q, r = torch.linalg.qr(chain(square) + 8 * torch.eye(len(x)))
    return torch.linalg.solve(square, q) + torch.linalg.svdvals(r) + torch.linalg.slogdet(square)[1]


def scattered(x: Tensor, where: Tensor, layer: nn.Module) -> Tensor:
    sums = torch.zeros(10, WIDTH).index_add(0, where, chain(layer(x)))
    return chain(sums).scatter_reduce(0, where[:10, None].expand(10, WIDTH), x[:10], "amax")


def concatenated(x: Tensor, empty: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
    return torch.cat([chain(layer(x)), chain(empty)]), chain(layer(x)[:, :0])


def jagged(x: Tensor, layer: nn.Module) -> Tensor:
    rows = torch.nested.nested_tensor_from_jagged(chain(layer(x)), torch.tensor([0, 10, 40, 64]))
    return layer(chain(rows)).values()


def per_row_gradients(x: Tensor, layer: nn.Module) -> Tensor:
    gradient = torch.func.grad(lambda row: chain(layer(row)).sum())
    return chain(torch.func.vmap(gradient)(chain(x)))


def asserted(x: Tensor, layer: nn.Module) -> Tensor:
    y = chain(layer(x))
    torch._assert_async((y.abs() <= 1).all())
    return y


def of(function: Callable[..., Any], *inputs: Tensor) -> Make:
    return lambda: between(Function(function, linear()), rows(), *inputs)


VALUES: dict[str, Make] = {
    "complex inside": of(spectrum),
    "complex in and out": lambda: between(
        Function(lambda x: x * x.exp()), real(64, WIDTH, dtype=torch.cfloat)
    ),
    "integers out": of(quantised),
    "nested outputs": nested_outputs,
    "named inputs": named_inputs,
    "several types": in_several_types,
    "autocast": in_autocast,
    "empty among others": lambda: between(Function(concatenated, linear()), rows(), real(0, WIDTH)),
    "sort and topk": of(sorted_rows),
    "chunks": of(in_chunks),
    "decompositions": lambda: between(Function(decomposed, nn.Linear(WIDTH, 48)), real(24, WIDTH)),
    "scatter": of(scattered, torch.arange(64) % 10),
    "jagged": of(jagged),
    "gradients inside": of(per_row_gradients),
    "assert": of(asserted),
}


# --- modules that take more than one call of their own -----------------------------------------------------


def embedding(kind: type[nn.Module], *indices: Tensor, **kwargs: Any) -> Make:
    def make() -> Job:
        table = kind(40, WIDTH, **kwargs)
        return job(
            Function(lambda *indices: chain(indices[-1](chain(indices[-2](*indices[:-2])))), table, linear()),
            *indices,
        )

    return make


def packed() -> Job:
    def function(x: Tensor, lengths: Tensor, gru: nn.Module) -> Tensor:
        sequence = nn.utils.rnn.pack_padded_sequence(chain(x), lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(gru(sequence)[0])[0]

    return between(Function(function, nn.GRU(8, 8)), real(6, 8, 8), torch.tensor([6, 3, 4, 1, 2, 2, 6, 5]))


def unrolled(cell: nn.Module) -> Job:
    def function(x: Tensor, cell: nn.Module) -> Tensor:
        state = None
        for row in x:
            state = cell(row, state)
        return state

    return between(Function(function, cell), real(4, 16, 16))


def shared_norm() -> Job:
    def function(x: Tensor, layer: nn.Module, norm: nn.Module) -> Tensor:
        return norm(chain(layer(norm(chain(layer(x))))))

    return between(Function(function, linear(), nn.BatchNorm1d(WIDTH)), rows())


def tied() -> Job:
    def function(tokens: Tensor, table: nn.Embedding) -> Tensor:
        return F.cross_entropy(F.linear(chain(table(tokens)), table.weight), tokens)

    return job(Function(function, nn.Embedding(40, WIDTH)), torch.randint(40, (128,)))


def hooked() -> Job:
    layer = linear()
    layer.register_forward_hook(lambda module, args, output: chain(output))

    def function(x: Tensor, layer: nn.Module) -> Tensor:
        y = layer(x)
        y.register_hook(lambda gradient: 2 * gradient)
        return chain(y)

    return between(Function(function, layer), rows())


def parametrized(wrap: Callable[[nn.Module], nn.Module]) -> Make:
    return lambda: between(nn.Sequential(wrap(linear()), nn.GELU(), linear()), rows())


TOKENS = torch.arange(64) * 7 % 40
MODULES: dict[str, Make] = {
    "sparse embedding": embedding(nn.Embedding, TOKENS, sparse=True),
    "sparse bag": embedding(nn.EmbeddingBag, TOKENS.view(16, 4), sparse=True, mode="sum"),
    "gru cell": lambda: unrolled(nn.GRUCell(16, 24)),
    "rnn cell": lambda: unrolled(nn.RNNCell(16, 24)),
    "norm used twice": shared_norm,
    "tied weights": tied,
    "hooks": hooked,
    "weight norm": parametrized(nn.utils.parametrizations.weight_norm),
    "spectral norm": parametrized(nn.utils.parametrizations.spectral_norm),
}

if torch.__version__ >= "2.12":  # before, Dynamo cannot trace them, whatever the backend
    MODULES["packed sequences"] = packed


# --- tests -------------------------------------------------------------------------------------------------


# A shorter case shows the same, here or in another file.
LONG = {
    *("selective checkpoint", "graph break on data", "noise returned", "own generator", "decompositions"),
    *("sparse bag", "gru cell", "spectral norm", "packed sequences", "pictures", "sequences", "reshaped"),
}


def params(*cases: dict[str, Make], slow: Container[str] = LONG) -> list[Any]:
    return [
        pytest.param(make, id=name, marks=[pytest.mark.slow] * (name in slow))
        for group in cases
        for name, make in group.items()
    ]


@pytest.mark.parametrize("make", params(CUSTOM, FLOW, RANDOM, STATE, VALUES, MODULES))
def test_it_trains_as_under_aot_eager(make: Make) -> None:
    full, small = check(make)
    assert full.reports
    assert small.changes > 0


@pytest.mark.parametrize("make", params(READ_THEN_WRITTEN))
def test_what_is_read_before_it_is_written_is_as_in_eager(make: Make) -> None:
    # PyTorch's partitioner recomputes such reads after the write: aot_eager is no reference (pytorch#197039).
    _, small = check(make, reference="eager")
    assert small.changes > 0


def test_sizes_and_scalars_that_only_the_data_tell() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        full, _ = check(sized_by_data)
    assert full.graphs == 1
    assert len(full.reports) == 1


def test_masks_smaller_than_the_state_that_would_redraw_them() -> None:
    layers = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Dropout(0.3))]
    full, _ = check(lambda: job(nn.Sequential(*layers), real(4, 8)))
    assert full.reports


def test_every_output_is_an_input() -> None:
    full, _ = check(lambda: job(Function(lambda x: (x, None, x.shape[0])), rows()))
    assert full.reports == []


def test_every_tensor_is_empty() -> None:
    full, _ = check(lambda: job(Function(chain), real(0, WIDTH)))
    assert len(full.reports) == 1


# --- dynamic shapes ----------------------------------------------------------------------------------------


def sized(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Make:
    """A step for each shape of the input."""
    return lambda: Job(Between(make()), [(real(*shape),) for shape in shapes])


def picture() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout2d(0.3)
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)


def random_masks() -> nn.Module:
    def function(x: Tensor, layer: nn.Module) -> tuple[Tensor, int]:
        y = chain(layer(x)) * torch.rand(len(x), 1)
        return F.dropout(y[: len(x) // 2], 0.4), y.shape[0]

    return Function(function, linear())


def reshaped() -> nn.Module:
    def function(x: Tensor, layer: nn.Module) -> Tensor:
        y = chain(layer(x).view(2, len(x) // 2, WIDTH).transpose(0, 1))
        return torch.cat([y, y.expand(len(x) // 2, 2, WIDTH)]).sum((1, 2)) + torch.arange(len(x))

    return Function(function, linear())


DYNAMIC: dict[str, Make] = {
    "rows": sized(block, (48, WIDTH), (96, WIDTH), (13, WIDTH)),
    "pictures": sized(picture, (4, 3, 12, 14), (2, 3, 21, 15), (6, 3, 9, 8)),
    "sequences": sized(encoder, (4, 12, WIDTH), (3, 20, WIDTH)),
    "random masks": sized(random_masks, (64, WIDTH), (32, WIDTH)),
    "reshaped": sized(reshaped, (64, WIDTH), (32, WIDTH)),
    "empty in the end": sized(linear, (64, WIDTH), (7, WIDTH), (0, WIDTH)),
}


@pytest.mark.parametrize("make", params(DYNAMIC))
def test_inputs_of_several_shapes(make: Make) -> None:
    _, small = check(make, dynamic=True)
    assert small.changes > 0


@pytest.mark.parametrize("make", params(STATE, slow={*STATE} - {"written through a view"}))
def test_sizes_that_are_symbols_change_nothing(make: Make) -> None:
    full, small = check(make, dynamic=True)
    assert full.reports
    assert small.changes > 0


@pytest.mark.parametrize("options", [{"budget": 1}, {"budget": "60"}, {"buget": "60%"}])
def test_all_errors_of_ours_are_dtr_errors(options: dict[str, Any]) -> None:
    with pytest.raises(DTRError):
        torch.compile(linear(), backend="dtr", options=options)(rows())


def test_a_nested_tensor_is_refused_with_a_way_out() -> None:
    rows = torch.nested.as_nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    with pytest.raises(GraphError, match="make it inside"):
        torch.compile(lambda x: x.sin() * 2, backend="dtr")(rows)


@pytest.mark.little_effort
def test_a_nested_region_has_no_budget() -> None:
    region = torch.compiler.nested_compile_region(lambda x, weight: chain(x @ weight).tanh())
    layer, x = linear(), rows()

    def function(x: Tensor) -> Tensor:
        return region(region(x, layer.weight), layer.weight).sum()

    torch.compile(function, backend="dtr")(x).backward()
    torch._dynamo.reset()
    with pytest.raises(GraphError, match="take the decorator off"):
        torch.compile(function, backend="dtr", options={"budget": "90%"})(x)
