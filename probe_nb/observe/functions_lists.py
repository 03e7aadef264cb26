"""Which functions of torch are recorded: three levels, each holding the one before.

`core`: products, convolutions, normalisations, attention, embeddings, recurrent cells, fused
optimizers and communication: long sums, or many numbers at once, where devices differ first.
`focus`: all that computes. `all`: also what only moves, copies, converts or creates numbers.

What only asks about a tensor, or does bookkeeping, is no function in this sense.
"""

from __future__ import annotations

from typing import Final, Literal

Level = Literal["core", "focus", "all"]

LEVELS: Final[tuple[Level, ...]] = ("core", "focus", "all")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CORE_PREFIXES: Final = frozenset({"Distributed", "NPU", "MindSpeed", "VF", "Triton"})
"""All of what is in these packages."""

CORE: Final = _words(
    # products
    "matmul __matmul__ __rmatmul__ bmm mm mv addmm addmm_ addbmm addbmm_ baddbmm baddbmm_ addmv "
    "addmv_ addr addr_ einsum tensordot dot vdot inner chain_matmul multi_dot vecdot linear "
    "bilinear _int_mm _scaled_mm _grouped_mm "
    # convolutions
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc convolution "
    "_convolution "
    # normalisations
    "batch_norm instance_norm layer_norm group_norm rms_norm local_response_norm "
    "native_batch_norm native_layer_norm native_group_norm _batch_norm_impl_index "
    "batch_norm_stats batch_norm_elemt batch_norm_update_stats batch_norm_gather_stats "
    "batch_norm_gather_stats_with_counts batch_norm_backward_elemt batch_norm_backward_reduce "
    # attention, embeddings, recurrent networks
    "multi_head_attention_forward scaled_dot_product_attention embedding embedding_bag lstm gru "
    "rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    # fused optimizers
    "_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_"
)
"""Names without a prefix: it is the same computation whatever it is called by."""

MOVES: Final = _words(
    # other shapes of the same numbers
    "view view_as view_as_real view_as_complex reshape reshape_as flatten unflatten ravel squeeze "
    "squeeze_ unsqueeze unsqueeze_ expand expand_as broadcast_to broadcast_tensors transpose "
    "transpose_ t t_ adjoint permute movedim moveaxis swapaxes swapaxes_ swapdims swapdims_ narrow "
    "select unfold as_strided as_strided_ diagonal align_as align_to align_tensors atleast_1d "
    "atleast_2d atleast_3d real imag conj resolve_conj resolve_neg positive __getitem__ "
    # parts and wholes
    "chunk split split_with_sizes tensor_split hsplit vsplit dsplit unsafe_chunk unsafe_split "
    "unsafe_split_with_sizes unbind cat concat concatenate stack hstack vstack dstack row_stack "
    "column_stack meshgrid cartesian_prod combinations block_diag "
    # copies
    "clone contiguous detach detach_ copy_ repeat repeat_interleave tile roll flip fliplr flipud "
    "rot90 diag diagflat diag_embed triu triu_ tril tril_ clamp alias_copy narrow_copy "
    # conversions
    "to type type_as float double half bfloat16 int long short byte char bool cfloat cdouble chalf "
    "cpu cuda npu xpu numpy __bool__ __nonzero__ __float__ __int__ __index__ __complex__ item "
    "to_dense to_sparse to_mkldnn coalesce dequantize "
    # creations
    "empty empty_like empty_strided zeros zeros_like ones ones_like full full_like arange range "
    "linspace logspace eye identity triu_indices tril_indices tensor as_tensor asarray from_numpy "
    "scalar_tensor new_empty new_zeros new_ones new_full new_tensor fill_ zero_ stride resize_ "
    "resize_as_ set_ sparse_coo_tensor complex polar"
)
"""Names without a prefix that `focus` leaves out; so are foreach functions and Aten."""

QUIET_PREFIXES: Final = frozenset({"Aten"})
"""What is called by its operator is left out by `focus`: others call the functions."""

QUESTIONS: Final = _words(
    # what a tensor is
    "dim dim_order ndimension size numel nelement element_size get_device data_ptr const_data_ptr "
    "storage_offset storage untyped_storage storage_type layout sparse_dim dense_dim _nnz _dimI "
    "_dimV qscheme q_scale q_per_channel_scales q_per_channel_zero_points q_per_channel_axis names "
    "result_type can_cast promote_types tolist apply_ map_ map2_ module_load share_memory_ "
    "pin_memory record_stream has_names _nested_tensor_size _nested_tensor_strides "
    "_nested_tensor_storage_offsets _version _is_view "
    # autograd
    "backward requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook "
    "_set_grad_enabled grad "
    # Python's own protocols
    "__len__ __repr__ __str__ __format__ __hash__ __iter__ __contains__ __reversed__ __dir__ "
    "__reduce__ __reduce_ex__ __setstate__ __deepcopy__ __array__ __array_wrap__ __dlpack__ "
    "__dlpack_device__ __long__ __torch_function__ __get__ __set__ __delete__ __init__ __new__ "
    "_clear_non_serializable_cached_data _autocast_to_full_precision "
    "_autocast_to_reduced_precision"
)
"""Names of what is no function in the sense of this file; so is all that begins with `is_`."""


def level_of(prefix: str, name: str) -> Level:
    """Return the first level that records a function.

    >>> level_of("Torch", "matmul"), level_of("Functional", "relu"), level_of("Tensor", "view")
    ('core', 'focus', 'all')
    """
    if prefix in CORE_PREFIXES or name in CORE:
        return "core"
    if name in MOVES or prefix in QUIET_PREFIXES or name.startswith("_foreach_"):
        return "all" if name != "_foreach_norm" else "focus"
    return "focus"


def is_question(name: str) -> bool:
    """Tell whether a function only asks, or does bookkeeping."""
    return name in QUESTIONS or name.startswith("is_")
