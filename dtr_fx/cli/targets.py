"""From ``package.module:factory``, ``path/to/file.py:factory`` or ``zoo:NAME`` to a model and its inputs."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from dtr_fx import lab
from dtr_fx.errors import CommandError, DTRError

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Trainee

_HERE = str(Path(lab.__file__).parent.parent)
_ZOO = str(Path(lab.__file__).parent / "zoo")

# What targets that are files end in: saved plans, operator logs, exported programs.
SAVED, LOGS, PROGRAM = ".json", (".log", ".log.gz", ".gz"), ".pt2"

Inputs: TypeAlias = "tuple[Any, ...] | dict[str, Any]"


def load_target(target: str, **settings: Any) -> tuple[Callable[..., Any], Inputs]:
    """Import a factory and call it: the model, and its positional or keyword arguments.

    A module may import from the working directory, a file from its own.
    """
    with _factory(target) as factory:
        return _called(factory, settings, target)


def load_fake(target: str, **settings: Any) -> tuple[Callable[..., Any], Inputs]:
    """As ``load_target``, under a mode of fake tensors: what cannot be built of these is built as it is.

    So are modules that are converted, by ``.bfloat16()``, say; on ``meta`` they take no memory, either.
    """
    from dtr_fx.torch_private import unset_fake_temporarily

    try:
        return load_target(target, **settings)
    except CommandError:
        with unset_fake_temporarily():
            return load_target(target, **settings)


def default_of(target: str, name: str) -> Any:
    """What a target's factory takes for an argument that it is not given; None if it has no such argument."""
    with _factory(target) as factory:
        argument = inspect.signature(factory).parameters.get(name)
    return None if argument is None or argument.default is argument.empty else argument.default


@contextlib.contextmanager
def _factory(target: str) -> Iterator[Callable[..., object]]:
    """A target's factory, which can import its neighbours as long as this lasts."""
    place, name = find_factory(target)
    if place == "zoo":
        from dtr_fx.lab.zoo import MODELS

        yield MODELS[name]
        return
    is_file = place.endswith(".py")
    with _importable(Path(place).resolve().parent if is_file else Path.cwd()):
        yield _member(_import(place, is_file=is_file), name, place)


def find_factory(target: str) -> tuple[str, str]:
    """The place and the name of a factory; CommandError for what is wrong before anything is imported."""
    place, colon, name = target.rpartition(":")
    if not (place and colon and name):
        near = difflib.get_close_matches(target, lab.MODELS, n=1)
        guess = f"; did you mean 'zoo:{near[0]}'?" if near else ""
        forms = "package.module:factory, path/to/file.py:factory or zoo:NAME"
        raise CommandError(f"{target!r} names no factory: write {forms}{guess}")
    if place == "zoo" and name not in lab.MODELS:
        raise CommandError(f"the zoo has no {name!r}{_or(name, lab.MODELS)}")
    if place.endswith(".py") and not Path(place).is_file():
        raise CommandError(f"there is no file {place}")
    return place, name


def _or(name: str, known: Sequence[str]) -> str:
    """The end of an error about a name: the nearest one, and all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    return f"{guess} it has: {', '.join(known) or 'no function'}"


def load_trainee(target: str, **settings: Any) -> Trainee:
    """A target's model and inputs, drawn from seed 0, as what can be trained step by step."""
    import torch

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
    import torch

    with one_line(f"{target} failed"):
        made = factory(**settings)
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
    except DTRError as error:
        cause = error.__cause__
        if cause is None or not hasattr(cause, "real_stack") or type(_root(cause)).__name__ == "Unsupported":
            raise
        raise CommandError(f"{what}: {_told(cause)}") from cause
    except (Exception, SystemExit) as error:
        raise CommandError(f"{what}: {_told(error)}") from error


def fails_by_itself(error: BaseException) -> bool:
    """True if it was raised by the user's code or by what that calls, not by dtr_fx."""
    inner = getattr(error, "inner_exception", error)  # of a backend, as Dynamo wraps it
    if getattr(inner, "real_stack", None):
        return True
    trace = traceback.extract_tb(inner.__traceback__)
    return bool(trace) and not _is_ours(trace[-1].filename)


def _is_ours(file: str) -> bool:
    return file.startswith(_HERE) and not file.startswith(_ZOO)


def _told(error: BaseException) -> str:
    """The error that was at the root of it, and the user's line."""
    root = _root(error)
    cause = " ".join(str(root).split())
    return f"{type(root).__name__}: {cause}{_where(root, getattr(error, 'real_stack', None))}"


def _root(error: BaseException) -> BaseException:
    """Of an error of Dynamo's, what was raised while it ran the user's code."""
    while hasattr(error, "real_stack") and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    return error


def _where(error: BaseException, stack: Sequence[traceback.FrameSummary] | None) -> str:
    if isinstance(error, SyntaxError):  # its message names the line
        return ""
    trace = stack or traceback.extract_tb(error.__traceback__)
    machinery = (contextlib.__file__, importlib.__file__, "<frozen")
    frames = [f for f in trace if not (f.filename.startswith(machinery) or _is_ours(f.filename))]
    # A wrong argument is told from where the user gave it, not from where a library noticed.
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _import(place: str, *, is_file: bool) -> ModuleType:
    path = Path(place)
    with one_line(f"{path} cannot be imported"):
        if not is_file:
            return importlib.import_module(place)
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
        raise CommandError(f"{place} has no {name!r}{_or(name, own)}")
    member = getattr(module, name)
    if not callable(member):
        raise CommandError(f"{place}:{name} is no function but of type {type(member).__name__}")
    return member  # type: ignore[no-any-return]
