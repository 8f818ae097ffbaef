"""``python -m dtr_fx`` is the ``dtr-fx`` command."""

from dtr_fx.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
