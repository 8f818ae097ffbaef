"""Unrolled GAN, on a mixture of Gaussians: Metz et al., Unrolled Generative Adversarial Networks, ICLR 2017.

The generator learns from the discriminator as it would be a few of its own optimisation steps later, and
through these steps (Section 2.2): gradients of gradients.
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


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )


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
        verdict: Tensor = functional_call(self.discriminator, dict(parameters), (points,))
        return verdict


def gaussians(count: int) -> Tensor:
    """Points around eight centres on a circle (Appendix A)."""
    angles = torch.randint(8, (count,)) * math.tau / 8
    return 2 * torch.stack([angles.cos(), angles.sin()], 1) + 0.02 * torch.randn(count, 2)


def unrolled_gan(steps: int = 10, batch: int = 1024, latent: int = 16, hidden: int = 64) -> Model:
    """A GAN that looks ``steps`` ahead, and a batch of noise and of points from the mixture."""
    model = UnrolledGAN(latent=latent, hidden=hidden, steps=steps, rate=0.1)
    return model, (torch.randn(batch, latent), gaussians(batch))
