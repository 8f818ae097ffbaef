"""Views of a ``Report``."""

from dtr_fx.inspect.diff import render_diff

__all__ = ["render_diff"]
