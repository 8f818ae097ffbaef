"""The private names of torch: each is there, and a missing one is an error that says what to do."""

from __future__ import annotations

import pytest
import torch

from dtr_fx import torch_private
from dtr_fx.errors import DTRError
from dtr_fx.torch_private import TorchPrivateError, torch_has


@pytest.mark.parametrize("name", torch_private._NAMES)
def test_every_name_is_there(name: str) -> None:
    if torch_has(name):
        assert getattr(torch_private, name) is not None
    else:
        with pytest.raises(TorchPrivateError, match=name):
            getattr(torch_private, name)


@pytest.mark.parametrize("place", ["torch._nowhere:x", "torch._ops:nothing", "torch._ops:OpOverload.a|b"])
def test_a_missing_name_says_which_torch_lacks_it(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_private._NAMES, "missing", place)
    with pytest.raises(TorchPrivateError) as caught:
        from dtr_fx.torch_private import missing  # noqa: F401
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, DTRError)
    message = str(caught.value)
    assert torch.__version__ in message
    assert place.partition(":")[0] in message
    assert ", ".join(torch_private.CHECKED) in message


def test_a_missing_attribute_is_the_same_error() -> None:
    with pytest.raises(TorchPrivateError, match="_rename in object"):
        torch_private.rename(object(), "x")


def test_other_names_are_no_names_of_this_module() -> None:
    with pytest.raises(AttributeError, match="no attribute 'FakeTensr'"):
        torch_private.FakeTensr  # noqa: B018
