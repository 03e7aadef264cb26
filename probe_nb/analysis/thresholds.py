"""Every number that a finding is judged by, with where it comes from.

`run.findings(name=value)` changes one for that question. What is worse than a missed fault is a
false alarm, so each lies well outside what healthy training shows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Final

from probe_nb.errors import ConfigError, closest


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of `run.findings`; the comment under each says its source."""

    lasting: int = 3
    """Steps in which something must hold without a break, the last ones a site was seen in, before
    it is said. Layers that begin at zero (LoRA, zero-initialised residuals) have moved by then."""

    overflow_headroom: float = 0.25
    """`overflow_risk`: largest |value| as a share of the largest number of the dtype. `GradScaler`
    doubles its scale as it grows, and a sum of four such values overflows (values must stay below
    the largest number at all times: Micikevicius et al., ICLR 2018, section 3.2)."""

    scaler_patience: int = 5
    """`loss_scale`: overflowing steps in a row that a scaler may take, and overflowing steps of the
    window that may come after a good one. From the default scale 2**16 of `GradScaler`, five
    halvings reach 2**11; it grows again only after 2,000 good steps. (DeepSpeed ends a run whose
    scale cannot fall any further.)"""

    underflow_share: float = 0.3
    """`underflow`: share of the gradient's elements that are not zero and lie in the subnormal
    range of their dtype, where bits are lost one by one. SSD diverged where 31% of the gradients
    were lost in float16 (NVIDIA, "Train With Mixed Precision", on loss scaling)."""

    dead_share: float = 0.99
    """`dead`: share of zeros in the output of a rectifier. About 50% is what ReLU does to centred
    values, 50% to 90% is usual in trained networks (Glorot, Bordes and Bengio, AISTATS 2011)."""

    saturated_slope: float = 0.02
    """`saturated`: mean slope of a bounded activation as a share of its largest slope. For tanh the
    slope is 1 - y^2, for the sigmoid y(1 - y), so the mean follows exactly from mean and l2 of
    the output. (Saturation of sigmoids: Glorot and Bengio, AISTATS 2010, section 3; the number
    is ours: a gradient is cut to a fiftieth.)"""

    vanished: float = 1e-7
    """`vanishing`: no element of the gradient is above this (default of the rule VanishingGradient
    of Amazon SageMaker Debugger) ..."""

    vanished_beside: float = 1e-6
    """... and its l2 is below this share of the largest of its role and step: a converged model has
    small gradients everywhere."""

    cut: float = 1e-4
    """`vanishing`: rms of what a module sends back over what arrived at it, from which on that
    module is named as the one that cuts the gradient. A saturated sigmoid of slope 0.02 passes
    2e-2; the number is ours, and decides of the place alone."""

    depth_ratio: float = 1e4
    """`vanishing`, `exploding`: by how much the gradient, as a share of the weight, may differ
    between the two ends of a network. Layers of AlexNet, which trains well, differ by a few hundred
    (You, Gitman and Ginsburg 2017, on which LARS rests)."""

    depth_layers: int = 4
    """Weights that a trend along depth needs at least."""

    depth_order: float = 0.6
    """Spearman's rank correlation with depth that a trend needs at least: ours, for disorder is no
    trend."""

    exploded: float = 1e6
    """`exploding`: a gradient has an element beyond this ..."""

    exploded_growth: float = 1e3
    """... or beyond 1, and beyond this multiple of all it had in the older half of the window. Both
    are far outside what clipping at norm 1 to 5 is used for (Pascanu, Mikolov and Bengio, ICML
    2013, section 3.2)."""

    gain: float = 10.0
    """`growing`: spread of a layer's output over rms of its input, in its first step. Schemes of
    initialisation keep it at 1 (Glorot and Bengio 2010) or at the square root of 2 (He et al., ICCV
    2015); PyTorch's own default gives 0.6. Ten is reached by no scheme in use ..."""

    gain_beside: float = 5.0
    """... and the gain is this multiple of the median of the layers of the same class ..."""

    gain_beside_bias: float = 3.0
    """... and the spread is this multiple of the rms of the bias, which is no gain."""

    gain_of_parts: float = 1e3
    """`growing`: the same for a part that is no layer by itself, such as a stack of blocks. Blocks
    that add to a stream without a norm double its variance (Zhang, Dauphin and Ma, ICLR 2019): this
    is twenty of them."""

    shrunk: float = 1e-4
    """`vanishing`: spread of the output over rms of the input of a part without parameters, in its
    first step. A division by 255, the commonest on purpose, is far from it."""

    input_size: float = 30.0
    """`input_scale` (note): rms of a model's input. Networks are made for inputs of about 1 (LeCun
    et al., Efficient BackProp, 1998, section 4.3); pixels from 0 to 255 have 120."""

    change_forward: float = 16.0
    """`sudden_change`: factor by which the rms of an input or output leaves, within one step, what
    it was in the steps before (the median of up to 16) ..."""

    change_backward: float = 256.0
    """... and the same for gradients, of which single outliers by a factor of 10 are usual ..."""

    change_deviations: float = 10.0
    """... and by how many robust standard deviations (1.4826 MAD of log2 rms). Iglewicz and Hoaglin
    (1993) call 3.5 an outlier; a training has many steps and many sites."""

    change_least: float = 0.01
    """`sudden_change`: a gradient with no element above this is small, whatever it was before."""

    change_elements: int = 16
    """`sudden_change`: elements that a gradient must have: sums of a few may cancel by chance."""

    change_history: int = 5
    """Steps that must lie before a change."""

    update_ratio: float = 0.33
    """`update_ratio`: |update| / |weight| in the median of a few steps in a row. About 0.001 is the
    rule of thumb (Karpathy, CS231n notes, "ratio of weights:updates"); small networks that train
    well with Adam begin at 0.1, and at a third nothing of a weight is left after a few steps ..."""

    update_ratio_beside: float = 0.2
    """... or this much, where it is also `update_beside` times the median of the other weights."""

    update_beside: float = 20.0
    """See `update_ratio_beside`. A new head often has ten times the rate of the rest."""

    update_ratio_rated: float = 0.03
    """... or this much, where it is `rate_beside` times that median, and the learning rate of its
    group is as many times the usual one. Thirty times the rule of thumb."""

    rate_beside: float = 100.0
    """See `update_ratio_rated`. Rates that fall from layer to layer by 0.8 to 0.95 (Clark et
    al. 2020, ELECTRA) differ by less between the top and the middle of a network."""

    rates_apart: float = 30.0
    """`rates_apart` (note): how many times the learning rate of a group is that of every other of
    its optimizer. A new head often has ten times the rate of the rest; the number is ours ..."""

    moves_apart: float = 10.0
    """... and how many times their updates, as shares of the weights, its own are. At one rate the
    layers of a network differ by a few times; optimizers that scale steps by the size of a weight
    (LARS, LAMB) even out what the rates say."""

    clipped_away: float = 1e3
    """`update_ratio`, tiny updates: by what factor gradients shrink between the backward and the
    step, from which on clipping is named. Clipping at norm 1 to 5 is usual (Pascanu et al.)."""

    low_share: float = 0.9
    """`update_ratio`: share of the weights that clipping must hold still, for a warning."""

    update_ratio_low: float = 1e-7
    """`update_ratio` (note): below this float32 (2**-24 = 6e-8) begins to round updates away."""

    update_steps: int = 5
    """Steps in a row whose median is judged: single large steps are no pattern."""

    lost_share: float = 0.9
    """`update_lost`: share of a weight's elements that an update leaves as they are because their
    dtype cannot hold the difference (bfloat16 rounds away what is below 2**-9 of the weight:
    Micikevicius et al. 2018, section 3.1, why weights are kept in float32)."""

    stuck_beside: float = 1e-3
    """`stuck`: the gradient, as a share of its parameter, must be at least this multiple of what is
    usual among those that move. One that is smaller may be nothing but rounding (a bias in front of
    a normalisation), and its updates with it."""

    frozen_share: float = 0.2
    """`frozen`: frozen layers between trained ones of their class are odd only where they are at
    most this share of all layers. Adapters (LoRA) freeze nearly all."""

    still_steps: int = 10
    """`stuck`: steps in a row in which an optimizer must find no gradient, or have a learning rate
    of 0, before it is said. A warm-up may begin at 0 for a step or two; ours."""

    unused_steps: int = 3
    """`unused`: steps with a backward in which a parameter must stay without a gradient."""

    noise_scale: float = 100.0
    """`gradient_noise` (note): noise of a micro step over signal, as variance (the simple noise
    scale of McCandlish et al. 2018, section 2.2, in micro batches). Beyond it the sum of the micro
    steps is mostly noise: that many micro batches would be worth one step."""

    not_zeroed: float = 2.0
    """`not_zeroed`: what `.grad` holds as a multiple of the most that the micro steps of the step
    can have added. By the triangle inequality it cannot exceed 1, unless something was there."""

    blown_up: float = 1e9
    """A value beyond this had left all bounds before it became NaN or Inf: then what blew it up
    (`growing`, `exploding`, `update_ratio`, `sudden_change`) is the cause and an error."""


DEFAULTS: Final = Thresholds()


def with_changes(changes: dict[str, Any]) -> Thresholds:
    """Return the thresholds with some changed.

    Raises:
        ConfigError: There is no such threshold, or the value is no number.
    """
    known = [field.name for field in fields(Thresholds)]
    for name, value in changes.items():
        if name not in known:
            near = closest(name, known)
            raise ConfigError(f"`{name}` is not a threshold.{near} Known: {', '.join(known)}.")
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigError(f"`{name}` is {value!r}; give a number.")
        size = float(value)
        if not size > 0:
            raise ConfigError(f"`{name}` is {value!r}; give a number above 0.")
        counts = isinstance(getattr(DEFAULTS, name), int)
        if counts and not size.is_integer():
            raise ConfigError(f"`{name}` is {value!r}; it counts, so give a whole number.")
        changes = {**changes, name: int(size) if counts else size}
    return replace(DEFAULTS, **changes)
