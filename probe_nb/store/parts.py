"""What a run is made of, wherever it comes from."""

from __future__ import annotations

from typing import NamedTuple

from probe_nb.store.calls import Calls
from probe_nb.store.columns import Columns
from probe_nb.store.keeping import Tensors
from probe_nb.store.values import Values
from probe_nb.terms import RunInfo


class Parts(NamedTuple):
    """What a run is made of."""

    info: RunInfo
    columns: Columns
    tensors: Tensors
    calls: Calls
    values: Values
