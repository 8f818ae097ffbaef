"""Multilayer perceptrons: a deep chain of them, and the Unrolled GAN on a mixture of Gaussians.

The GAN: Metz et al., Unrolled Generative Adversarial Networks, ICLR 2017.  Its generator learns from the
discriminator as it would be a few optimisation steps later, through these steps: gradients of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from dtr_fx.lab.zoo.layers import Model

Parameters = Mapping[str, Tensor]


class MLP(nn.Module):
    """A deep, narrow chain: the linear network of the theory, with weights."""

    def __init__(self, *, layers: int, width: int, classes: int) -> None:
        super().__init__()
        linear = [nn.Linear(width, width) for _ in range(layers)]
        hidden = [module for layer in linear for module in (layer, nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, classes))
        for layer in linear:  # as they come, the first of fifty layers would see no gradient
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), labels)


def mlp(layers: int = 50, width: int = 128, batch: int = 1024, classes: int = 10) -> Model:
    """An MLP of ``layers`` hidden layers and a batch of random vectors."""
    model = MLP(layers=layers, width=width, classes=classes)
    return model, (torch.randn(batch, width), torch.randint(classes, (batch,)))


def mlp_full(layers: int = 50, segment: int = 7) -> Model:
    """An MLP of 50 layers, in segments of about √50: a single layer saves no more than what enters it."""
    model, inputs = mlp(layers=layers, width=1024, batch=8192, classes=10)
    flat = model.layers
    assert isinstance(flat, nn.Sequential)
    starts = range(0, len(flat), 2 * segment)
    model.layers = nn.Sequential(*(flat[start : start + 2 * segment] for start in starts))
    return model, inputs


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    first, second, last = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)


class UnrolledGAN(nn.Module):
    """Returns the sum of both losses; each network has its gradient from its own alone."""

    def __init__(self, *, latent: int, hidden: int, steps: int, rate: float) -> None:
        super().__init__()
        self.steps = steps
        self.rate = rate
        self.generator = perceptron(latent, hidden, 2)
        self.discriminator = perceptron(2, hidden, 1)

    def forward(self, noise: Tensor, real: Tensor) -> Tensor:
        fake = self.generator(noise)
        now = dict(self.discriminator.named_parameters())
        return self.generator_loss(fake, real) + self.discriminator_loss(now, fake.detach(), real)

    def generator_loss(self, fake: Tensor, real: Tensor) -> Tensor:
        """How well the discriminator tells the fakes after ``steps`` more steps (Equation 10)."""
        later: Parameters = {
            name: parameter.detach().requires_grad_()
            for name, parameter in self.discriminator.named_parameters()
        }
        for _ in range(self.steps):
            later = self.descend(later, fake, real)
        return F.softplus(-self.judge(later, fake)).mean()

    def descend(self, parameters: Parameters, fake: Tensor, real: Tensor) -> Parameters:
        """One step of gradient descent that can be differentiated (Equation 8)."""
        loss = self.discriminator_loss(parameters, fake, real)
        gradients = torch.autograd.grad(loss, tuple(parameters.values()), create_graph=True)
        later = (value - self.rate * gradient for value, gradient in zip(parameters.values(), gradients))
        return dict(zip(parameters, later))

    def discriminator_loss(self, parameters: Parameters, fake: Tensor, real: Tensor) -> Tensor:
        of_fake, of_real = self.judge(parameters, fake), self.judge(parameters, real)
        return F.softplus(of_fake).mean() + F.softplus(-of_real).mean()

    def judge(self, parameters: Parameters, points: Tensor) -> Tensor:
        return functional_call(self.discriminator, dict(parameters), (points,))


def gaussians(count: int) -> Tensor:
    """Points around eight centres on a circle (Appendix A)."""
    angles = torch.randint(8, (count,)) * math.tau / 8
    return 2 * torch.stack([angles.cos(), angles.sin()], 1) + 0.02 * torch.randn(count, 2)


def unrolled_gan(steps: int = 10, batch: int = 1024, latent: int = 16, hidden: int = 64) -> Model:
    """A GAN that looks ``steps`` ahead, and a batch of noise and of points from the mixture."""
    model = UnrolledGAN(latent=latent, hidden=hidden, steps=steps, rate=0.1)
    return model, (torch.randn(batch, latent), gaussians(batch))
