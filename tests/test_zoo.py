"""The model zoo: each architecture against its paper or against PyTorch's own version, and their logs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dtr_fx import lab
from dtr_fx.lab import zoo
from dtr_fx.lab.log import read_log
from dtr_fx.lab.record import record_log
from dtr_fx.lab.replay import replay
from dtr_fx.lab.zoo.perceptrons import UnrolledGAN
from dtr_fx.lab.zoo.recurrent import LSTM, TreeLSTM
from dtr_fx.lab.zoo.transformer import Attention, Transformer
from dtr_fx.lab.zoo.unet import UNet

# Small enough to record all of them in a second or two.
SMALL = {
    "resnet32": lambda: zoo.resnet32(batch=2),
    "densenet121": lambda: zoo.densenet121(batch=2, size=64),
    "inception": lambda: zoo.inception(batch=2, size=64),
    "unet": lambda: zoo.unet(batch=1, size=188),
    "transformer": lambda: zoo.transformer(batch=2, length=8),
    "lstm": lambda: zoo.lstm(steps=8, batch=2),
    "treelstm": lambda: zoo.treelstm(leaves=8, batch=2),
    "unrolled_gan": lambda: zoo.unrolled_gan(steps=3, batch=8),
}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_name_of_the_command_line_is_a_factory_of_its_own():
    assert set(zoo.ZOO) < set(zoo.MODELS)
    assert {name: getattr(zoo, name) for name in zoo.MODELS} == zoo.MODELS
    assert (list(zoo.ZOO), list(zoo.MODELS)) == (list(lab.PAPER), list(lab.MODELS))


def test_names():
    assert set(zoo.ZOO) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_recorded_and_replayed(name, tmp_path):
    torch.manual_seed(0)
    model, inputs = SMALL[name]()
    loss = model(*inputs)
    assert loss.dim() == 0
    assert loss.isfinite()
    record_log(model, inputs, tmp_path / "x.log")
    program = read_log(tmp_path / "x.log")
    result = replay(program, program.peak)
    assert result.outcome == "ok"
    assert result.slowdown == 1


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_learns(name):
    torch.manual_seed(0)
    model, inputs = SMALL[name]()
    model(*inputs).backward()
    dead = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert not dead


@pytest.mark.parametrize("name", zoo.ZOO)
def test_parameters_and_inputs_are_small(name):
    """Less than 15% of what there is after the forward pass."""
    torch.manual_seed(0)
    model, inputs = zoo.ZOO[name]()
    constants = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *model.buffers(), *inputs)}
    saved: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = model(*inputs)
    assert loss.isfinite()
    activations = sum(size for where, size in saved.items() if where not in constants)
    assert sum(constants.values()) < 0.15 * (activations + sum(constants.values()))


# Published sizes


def test_resnet32():
    """0.46 million parameters in 32 layers (He et al., Table 6)."""
    model, _ = zoo.resnet32()
    assert parameters(model) == pytest.approx(0.46e6, rel=0.01)
    assert sum(isinstance(module, (nn.Conv2d, nn.Linear)) for module in model.modules()) == 32


def test_densenet121():
    """7,978,856 parameters at full width, for ImageNet, as everybody's; 121 layers."""
    with torch.device("meta"):
        model, _ = zoo.densenet121(growth=32, classes=1000)
    assert parameters(model) == 7_978_856
    assert sum(isinstance(module, (nn.Conv2d, nn.Linear)) for module in model.modules()) == 121


def test_inception():
    """42,679,816 parameters at full width, for ImageNet, as in the authors' released model."""
    with torch.device("meta"):
        model, _ = zoo.inception(unit=32, classes=1000)
    assert parameters(model) == 42_679_816


def test_unet():
    """572 pixels in, 388 out, 1,024 channels at the bottom (Figure 1)."""
    with torch.device("meta"):
        model = UNet(depth=4, width=64, classes=2)
        assert model.logits(torch.empty(1, 1, 572, 572)).shape == (1, 2, 388, 388)
    assert max(module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)) == 1024
    assert sum(isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) for module in model.modules()) == 23


def test_transformer():
    """65 million parameters in the base model, with the vocabulary of 37,000 (Table 3 and Section 5.1)."""
    with torch.device("meta"):
        model = Transformer(layers=6, width=512, heads=8, length=64, vocab=37_000, dropout=0.1)
    assert parameters(model) == pytest.approx(65e6, rel=0.04)


# Against PyTorch's own


def test_attention():
    torch.manual_seed(0)
    attention = Attention(32, 4)
    theirs = nn.MultiheadAttention(32, 4, bias=False, batch_first=True)
    weights = [attention.query.weight, attention.key.weight, attention.value.weight]
    theirs.in_proj_weight.data = torch.cat(weights).detach()
    theirs.out_proj.weight.data = attention.out.weight.detach()
    x, memory = torch.randn(2, 5, 32), torch.randn(2, 5, 32)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, memory, memory, attn_mask=mask)
    torch.testing.assert_close(attention(x, memory, mask), expected)


def test_decoder_sees_no_future():
    torch.manual_seed(0)
    model, (source, target, following) = zoo.transformer(batch=2, length=8)
    model.eval()
    seen: list[torch.Tensor] = []
    model.decoder[-1].register_forward_hook(lambda module, args, output: seen.append(output))
    model(source, target, following)
    target[:, 5:] = 0
    model(source, target, following)
    torch.testing.assert_close(seen[0][:, :5], seen[1][:, :5])
    assert not torch.allclose(seen[0][:, 5:], seen[1][:, 5:])


def test_lstm():
    torch.manual_seed(0)
    model = LSTM(inputs=3, hidden=4, classes=2)
    theirs = nn.LSTM(3, 4)
    order = [0, 1, 3, 2]  # theirs is enter, forget, new, leave
    for name, ours in (("weight_ih_l0", model.cell.of_input), ("weight_hh_l0", model.cell.of_hidden)):
        chunks = ours.weight.detach().chunk(4)
        getattr(theirs, name).data = torch.cat([chunks[number] for number in order])
    bias = model.cell.of_input.bias.detach().chunk(4)
    theirs.bias_ih_l0.data = torch.cat([bias[number] for number in order])
    theirs.bias_hh_l0.data.zero_()
    sequence, labels = torch.randn(6, 5, 3), torch.randint(2, (5,))
    expected = F.cross_entropy(model.head(theirs(sequence)[0][-1]), labels)
    torch.testing.assert_close(model(sequence, labels), expected)


# The others


def test_treelstm():
    """With its forget gates open and nothing new, the root's memory is the sum of the leaves'."""
    torch.manual_seed(0)
    model = TreeLSTM(inputs=3, hidden=4, classes=2)
    model.node.weight.data.zero_()
    model.node.bias.data = torch.tensor([-100.0, 100.0, 100.0, 0.0, 0.0]).repeat_interleave(4)
    words = torch.randn(8, 5, 3)
    leaves = sum(model.state_of_leaf(word)[1] for word in words)
    h, c = model.subtree(words)
    torch.testing.assert_close(c, leaves)
    torch.testing.assert_close(h, c.tanh() / 2)


def gan(steps: int, rate: float) -> tuple[UnrolledGAN, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = UnrolledGAN(latent=3, hidden=8, steps=steps, rate=rate).double()
    return model, torch.randn(16, 3).double(), torch.randn(16, 2).double()


def test_generator_learns_through_the_steps():
    """Its gradient against finite differences."""
    model, noise, real = gan(steps=3, rate=0.5)
    weight = model.generator[0].weight
    [gradient] = torch.autograd.grad(model.generator_loss(model.generator(noise), real), [weight])
    losses = []
    for step in (1e-5, -2e-5):
        weight.data[0, 0] += step
        losses.append(model.generator_loss(model.generator(noise), real).item())
    assert gradient[0, 0].item() == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-5)


def test_discriminator_learns_from_its_own_loss():
    """However far the generator looks ahead; and looking ahead makes a difference to the generator alone."""
    gradients = []
    for steps in (0, 3):
        model, noise, real = gan(steps=steps, rate=0.5)
        model(noise, real).backward()
        gradients.append((model.discriminator[0].weight.grad, model.generator[0].weight.grad))
    torch.testing.assert_close(gradients[0][0], gradients[1][0])
    assert not torch.allclose(gradients[0][1], gradients[1][1])
