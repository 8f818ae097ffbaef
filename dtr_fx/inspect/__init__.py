"""Views of a ``Report`` and of a ``Comparison``."""

from dtr_fx.inspect.comparison import Comparison, Mark
from dtr_fx.inspect.curve import render_curve
from dtr_fx.inspect.curve_page import curve_page
from dtr_fx.inspect.diff import render_diff

__all__ = ["Comparison", "Mark", "curve_page", "render_curve", "render_diff"]
