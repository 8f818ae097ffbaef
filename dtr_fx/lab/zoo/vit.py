"""A Vision Transformer: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model, labelled_images


class ViT(nn.Module):
    """With the layers of ``torch.nn``; attention with dropout is not fused on a CPU."""

    def __init__(self, *, layers: int, width: int, heads: int, size: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.start = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1 + (size // patch) ** 2, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(len(images), -1, -1), patches], dim=1) + self.position
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x[:, 0]), labels)


def vit(layers: int = 12, width: int = 768, batch: int = 32, size: int = 224, classes: int = 1000) -> Model:
    """ViT-B/16 with dropout on images of 224 × 224."""
    model = ViT(layers=layers, width=width, heads=width // 64, size=size, patch=16, classes=classes)
    return model, labelled_images(batch, size, classes)
