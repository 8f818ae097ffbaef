"""Views of a ``Report`` and of a ``Comparison``: text, HTML, and other tools' forms."""
