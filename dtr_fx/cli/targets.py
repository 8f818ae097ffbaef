"""From ``package.module:factory``, ``path/to/file.py:factory`` or ``zoo:NAME`` to a model and its inputs."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from dtr_fx.errors import CommandError, DTRError

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Trainee

Inputs: TypeAlias = "tuple[Any, ...] | dict[str, Any]"


def load_target(target: str, **settings: Any) -> tuple[Callable[..., Any], Inputs]:
    """Import a factory and call it: the model, and its positional or keyword arguments.

    A module may import from the working directory, a file from its own.
    """
    place, colon, name = target.rpartition(":")
    if not (place and colon and name):
        forms = "package.module:factory, path/to/file.py:factory or zoo:NAME"
        raise CommandError(f"{target!r} names no factory: write {forms}")
    if place == "zoo":
        from dtr_fx.lab.zoo import MODELS

        if name not in MODELS:
            raise CommandError(f"the zoo has no {name!r}; it has: {', '.join(MODELS)}")
        return _called(MODELS[name], settings, target)
    is_file = place.endswith(".py")
    with _importable(Path(place).resolve().parent if is_file else Path.cwd()):
        module = _import(place, is_file=is_file)
        return _called(_member(module, name, place), settings, target)


def load_trainee(target: str, **settings: Any) -> Trainee:
    """A target's model and inputs, drawn from seed 0, as what can be trained step by step."""
    from dtr_fx.lab.trainee import Trainee

    torch.manual_seed(0)
    model, inputs = load_target(target, **settings)
    if not isinstance(model, torch.nn.Module):
        raise CommandError(f"{target}: a function has no parameters to train; give a module")
    return Trainee(model, inputs)


def _called(
    factory: Callable[..., object], settings: Mapping[str, Any], target: str
) -> tuple[Callable[..., Any], Inputs]:
    """What the factory makes, as a model and its arguments."""
    try:
        with one_line(f"{target} failed"):
            made = factory(**settings)
    except CommandError as error:
        # The user's part of it; a call that did not get into the factory has none.
        cause = error.__cause__
        frames = cause.__traceback__ if cause is not None else None
        while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, contextlib.__file__):
            frames = frames.tb_next
        if cause is not None and frames is not None:
            error.traceback = "".join(traceback.format_exception(type(cause), cause, frames))
        raise
    if not (isinstance(made, (tuple, list)) and len(made) == 2):
        raise CommandError(f"{target} must return a pair (model, inputs), not {_describe(made)}")
    model, inputs = made
    if not callable(model):
        raise CommandError(f"{target}: the model must be a module or a function, not {_describe(model)}")
    if isinstance(inputs, torch.Tensor):
        return model, (inputs,)
    if isinstance(inputs, (tuple, list)):
        return model, tuple(inputs)
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
        return model, dict(inputs)
    forms = "a tensor, a tuple of arguments or a dict of keyword arguments"
    raise CommandError(f"{target}: the inputs must be {forms}, not {_describe(inputs)}")


def _describe(value: object) -> str:
    size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    return f"{type(value).__name__}{size}"


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:  # the user's code may have taken it out
            sys.path.remove(entry)


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turn whatever the user's code raises, an exit included, into one line that says where."""
    try:
        yield
    except DTRError:
        raise
    except (Exception, SystemExit) as error:
        cause = " ".join(str(error).split())
        raise CommandError(f"{what}: {type(error).__name__}: {cause}{_where(error)}") from error


def _where(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # its message names the line
        return ""
    machinery = (__file__, importlib.__file__, "<frozen")
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in trace if not frame.filename.startswith(machinery)]
    # A wrong argument is told from where the user gave it, not from where a library noticed.
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _import(place: str, *, is_file: bool) -> ModuleType:
    path = Path(place)
    with one_line(f"{path} cannot be imported"):
        if not is_file:
            return importlib.import_module(place)
        if not path.is_file():
            raise CommandError(f"there is no file {path}")
        # A name of its own: random.py or test.py must not stand in for the module of that name.
        name = f"dtr_fx_target_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise CommandError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


def _member(module: ModuleType, name: str, place: str) -> Callable[..., object]:
    if not hasattr(module, name):
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        near = difflib.get_close_matches(name, own, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ";"
        raise CommandError(f"{place} has no {name!r}{guess} it has: {', '.join(own) or 'no function'}")
    member = getattr(module, name)
    if not callable(member):
        raise CommandError(f"{place}:{name} is no function but of type {type(member).__name__}")
    return member  # type: ignore[no-any-return]
