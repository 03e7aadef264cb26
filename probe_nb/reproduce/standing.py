"""Functions that stand in for torch's, NumPy's and Python's: without dropout, or seeded each time.

Names are the process's: there is one of each kind, and the newest `seed_all` says what it does.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final

from probe_nb.reproduce.names import Names

AnyFunction = Callable[..., Any]

_DROPOUTS: Final = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_alpha_dropout"),
)
_OF_FUNCTIONAL: Final = (*_DROPOUTS, "rrelu", "rrelu_", "scaled_dot_product_attention")
_OF_TORCH: Final = (
    *("bernoulli", "binomial", "multinomial", "normal", "poisson"),
    *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm"),
    *("dropout", "dropout_", "feature_dropout", "feature_dropout_", "native_dropout"),
    *("alpha_dropout", "alpha_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_"),
    *("rrelu", "rrelu_", "_sample_dirichlet", "_standard_gamma"),
)
_OF_TENSORS: Final = (
    *("bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_"),
    *("multinomial", "normal_", "random_", "uniform_"),
)
_NOT_DRAWS: Final = frozenset(
    {
        *("seed", "getstate", "setstate"),
        *("get_state", "set_state", "get_bit_generator", "set_bit_generator"),
    }
)


class StandIns(ABC):
    """Functions under the names of others as long as `value` is not None."""

    def __init__(self) -> None:
        self.value: Any = None
        self._names = Names()

    def read(self) -> Any:
        """Return what they are told, None if there are none."""
        return self.value

    def write(self, value: Any) -> None:
        """Tell them something, which puts them there; or None, which takes them away."""
        self.value = value
        if value is None and self._names.in_use:
            self._names.restore()
        elif value is not None and not self._names.in_use:
            self.put()

    @abstractmethod
    def put(self) -> None:
        """Put them there."""


class NoDropout(StandIns):
    """The functions of `torch.nn.functional` that drop: with a probability of 0 they do not."""

    def put(self) -> None:
        """Put them under all names of torch's functions."""
        import torch.nn.functional as F

        dropouts = [getattr(F, name) for name in _DROPOUTS]
        attention = [F.scaled_dot_product_attention]
        self._names.replace(dropouts, [], lambda each: self._without(each, 1, "p"))
        self._names.replace(attention, [], lambda each: self._without(each, 4, "dropout_p"))

    def _without(self, function: AnyFunction, place: int, word: str) -> AnyFunction:
        @functools.wraps(function)
        def kept(*args: Any, **kwargs: Any) -> Any:
            if self.value is None:
                return function(*args, **kwargs)
            if len(args) > place:
                args = (*args[:place], _zero(args[place]), *args[place + 1 :])
            else:
                kwargs[word] = _zero(kwargs.get(word, 0.0))
            return function(*args, **kwargs)

        return kept


def _zero(probability: Any) -> Any:
    """Return 0, but leave what is no probability, for torch to refuse it."""
    return 0.0 if 0 <= probability <= 1 else probability


class Fixed(StandIns):
    """The functions that draw from a global generator, seeded before and after each call."""

    def put(self) -> None:
        """Put them under all names of the three libraries' functions."""
        import torch

        tensors = [(torch.Tensor, name) for name in _OF_TENSORS]
        self._names.replace(_torchs(), tensors, lambda each: self._seeded(each, torch.manual_seed))
        self._names.replace(_pythons(), [], lambda each: self._seeded(each, random.seed))
        numpys = list(of_numpy())
        if numpys:
            seed = sys.modules["numpy"].random.seed
            self._names.replace(numpys, [], lambda each: self._seeded(each, seed))

    def _seeded(self, function: AnyFunction, seed: AnyFunction) -> AnyFunction:
        @functools.wraps(function)
        def seeded(*args: Any, **kwargs: Any) -> Any:
            if self.value is None:
                return function(*args, **kwargs)
            seed(self.value)
            try:
                return function(*args, **kwargs)
            finally:
                if self.value is not None:
                    seed(self.value)

        return seeded


def _torchs() -> Iterator[AnyFunction]:
    import torch
    import torch.nn.functional as F

    for room, names in ((torch, _OF_TORCH), (F, _OF_FUNCTIONAL)):
        yield from (getattr(room, name) for name in names if hasattr(room, name))


def _pythons() -> Iterator[AnyFunction]:
    """Yield the methods of the global generator, which are the functions of `random`."""
    return _methods(random, python_generator())


def python_generator() -> object:
    """Return the generator whose methods are the functions of `random`."""
    return getattr(random.seed, "__self__", None)


def of_numpy() -> Iterator[AnyFunction]:
    """Yield the methods of the global generator, which are functions of `numpy.random`."""
    try:
        from numpy import random as room
    except ImportError:
        return
    yield from _methods(room, room.mtrand._rand)  # noqa: SLF001 - it has no public name
    yield from (getattr(room, name) for name in ("ranf", "sample"))  # which call `random_sample`


def _methods(room: Any, generator: object) -> Iterator[AnyFunction]:
    """Yield what draws from a generator, where a module has it as a function."""
    for name, value in vars(room).items():
        whose = getattr(inspect.unwrap(value), "__self__", None) if callable(value) else None
        if whose is generator and name not in _NOT_DRAWS:
            yield value


NO_DROPOUT: Final = NoDropout()
FIXED: Final = Fixed()
