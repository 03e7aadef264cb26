"""What to try, by kind of finding and class of module."""

from __future__ import annotations

from typing import Final

_BY_KIND: Final = {
    "non_finite": "Look at the rows of this call: `run.frame(step=…, module=…)`.",
    "loss_scale": "Start with a lower `init_scale`. If they overflow at a scale of 1 too, the "
    "gradients are not finite by themselves: look where they arise without a scaler.",
    "clipped": "Widen the dtype of this module or scale its input; what was larger is lost.",
    "overflow_risk": "Keep this module in float32 or bfloat16 (`torch.autocast(enabled=False)` "
    "around it), or lower the scale of its input or weights.",
    "underflow": "Use a `GradScaler`, or a higher loss scale, or bfloat16: "
    "`run.what_if('float16')` says which scale would fit.",
    "sudden_change": "Look at the batch of that step; log what the data loader gave.",
    "exploding": "Clip gradients (`torch.nn.utils.clip_grad_norm_`), lower the learning rate, look "
    "at the initialisation. If a `GradScaler` is in use, pass it as `scaler=`.",
    "vanishing": "Use normalisation, residual connections, or an activation that does not "
    "saturate (ReLU, GELU) with a matching initialisation.",
    "growing": "Initialise the weights with a scheme that keeps the variance "
    "(`torch.nn.init.kaiming_normal_`, `xavier_uniform_`), or normalise the output.",
    "dead": "Lower the learning rate, look at the bias in front of it and at the scale of its "
    "input, or use LeakyReLU or GELU. Dead from the first step: look at the initialisation.",
    "saturated": "Lower the scale of its input: smaller initial weights, normalisation in front, a "
    "lower learning rate.",
    "unused": "If it is meant to learn, look for `.detach()`, `.item()`, `torch.no_grad()` or an "
    "output that does not reach the loss; if not, `requires_grad_(False)` says so.",
    "frozen": "If it is meant to learn: `requires_grad_(True)`, and give it to the optimizer.",
    "stuck": "Look whether the optimizer holds this parameter (it may have been replaced after the "
    "optimizer was made) and whether its group has `lr` 0.",
    "update_lost": "Keep the weights in float32 (autocast casts where it pays), or use an "
    "optimizer with float32 master weights or stochastic rounding.",
    "update_ratio": "Change the learning rate of this group: a ratio of about 0.001 is usual.",
    "rates_apart": "Nothing is wrong if it is meant so, as for a new head beside a trained "
    "backbone. If not, look at the `lr` of the optimizer's groups.",
    "not_zeroed": "Call `optimizer.zero_grad()` in every step.",
    "gradient_noise": "A larger batch, or more micro steps, gives a step that is worth more; a "
    "higher learning rate does not.",
    "same_input": "Give each rank its own part of the data: `DistributedSampler`, and a seed that "
    "depends on the rank.",
    "input_scale": "Normalise the input: subtract its mean, divide by its standard deviation.",
    "alert": "This is your own rule.",
}

_BY_CLASS: Final = {
    ("non_finite", "Softmax"): "A row that is masked everywhere gives NaN: leave one entry open. "
    "Large scores overflow in float16: scale them before, or compute in float32.",
    ("non_finite", "LogSoftmax"): "Compute it in float32; a row that is -Inf everywhere gives NaN.",
    ("non_finite", "MultiheadAttention"): "A row that is masked everywhere gives NaN; scores "
    "overflow in float16 where queries and keys are large: normalise them, or use float32.",
    ("non_finite", "LayerNorm"): "A constant row has no spread: look at `eps`, and at its input.",
    ("non_finite", "BatchNorm1d"): "A constant feature has no spread: look at `eps` and the batch.",
    ("non_finite", "BatchNorm2d"): "A constant channel has no spread: look at `eps` and the batch.",
    ("non_finite", "Embedding"): "Look at the weight of this embedding: an earlier step spoilt it.",
    ("exploding", "RNN"): "Clip gradients, shorten the sequence, initialise the recurrent weight "
    "orthogonally, or use an LSTM or GRU.",
    ("exploding", "RNNCell"): "Clip gradients, shorten the sequence, initialise the recurrent "
    "weight orthogonally, or use an LSTM or GRU.",
    ("exploding", "LSTM"): "Clip gradients or shorten the sequence.",
    ("exploding", "GRU"): "Clip gradients or shorten the sequence.",
    ("growing", "Embedding"): "`nn.Embedding` starts with standard deviation 1; where its weight "
    "is the output layer too, start with 0.02.",
}


def advice_for(kind: str, module_type: str) -> str:
    """Return what to try for a kind of finding at a module of this class."""
    return _BY_CLASS.get((kind, module_type), _BY_KIND.get(kind, ""))
