"""Write the list of operators that a file may name: `python docs/generate_operators.py`.

The list is `src/dovetail/artifact/operators.txt`, one overload a line, and the reader looks nowhere else. It is derived
from what this torch registers, by these rules; whatever they do not mention is left out:

- operators of `aten` that have a kernel for the CPU or are defined by such operators explicitly, and, of those that
  torch defines by others in passing (composite implicit), the few that dovetail's own passes make (`COMPOSITES`) and
  the recurrent layers and cells that stay one operator when they are frozen (`RECURRENT`);
- primitives of torch (`prims`) that write nothing, but for `_DENIED_PRIMS`; in both,
- whose operands and results are tensors, numbers, texts, dtypes and the like: no storages, streams, classes;
- none that a row of `DENIED` matches, in any of its forms (functional, in place, `out=`).

What a kernel trusts was found by trial: `tests/artifact/kernel_probe.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

PATH = Path(__file__).parents[1] / "src" / "dovetail" / "artifact" / "operators.txt"

# A pattern for names without a trailing underscore, and why no file may name what it matches.
DENIED: tuple[tuple[str, str], ...] = (
    (r"from_file", "reads or makes a file"),
    (r"_print|_foobar|_test_.*|_assert_scalar|_make_dep_token", "is there for torch's own use"),
    (r"set|set_data|resize|resize_as|_resize_output|_copy_from.*|_lazy_clone", "changes which memory a tensor has"),
    (r"_reshape_alias|slice_inverse", "views memory without a check that it is the operand's"),
    (r"_fw_primal.*|_make_dual.*|is_set_to|_has_same_storage_numel", "is part of autograd, or asks about storages"),
    (r"_?pin_memory|is_pinned|_efficientzerotensor|_new_zeros_with_same_feature_meta", "is memory of a special kind"),
    (r".*sparse.*|s?spmm|sspaddmm|_?coalesced?|is_coalesced|_?to_dense|dense_dim|_spdiags", "is for sparse tensors"),
    (r"(ccol|crow|col|row|_)?_?(indices|values)(_copy)?|_convert_indices_.*", "is for sparse tensors"),
    (r".*nested.*|.*jagged.*|to_padded_tensor", "is for nested tensors"),
    (r"(?!_?fake_quantize_per_tensor_affine_cachemask_tensor_qparams$)(?!fake_quantize).*quantize.*|q_.*|int_repr|dequantize|_fused_moving.*|.*fake_quantize_learnable.*",
     "is for quantized tensors"),
    (r"_weight_int.*|_convert_weight.*|_dyn_quant.*|_scaled_mm.*", "trusts the layout of packed weights"),
    (r"(?!mkldnn_rnn_layer$).*(cudnn|miopen|mkldnn|_mps|mps_|nnpack|triton|hip|cuda).*", "is one vendor's"),
    (r".*overrideable.*", "has no kernel of torch's own"),
    (r"_transform_bias_rescale_qkv", "is a short cut of torch's modules that trusts the shapes of its weights"),
    (r"_thnn_.*|_philox_.*", "is for other devices"),
    (r"_?ctc_loss.*|_embedding_bag.*backward|embedding_renorm|.*segment_reduce.*|_pdist_backward|fractional_max_pool.*",
     "reads or writes wherever its indices point"),
    (r"multi(label)?_margin_loss_backward", "reads or writes wherever its indices point"),
    (r"_histogramdd.*", "makes as much memory as its numbers say"),
    (r"linear_backward|matmul_backward|.*_slow_conv.*|slow_conv.*|convolution_overr.*|_unsafe_masked.*|conv_depthwise3d",
     "is what another operator is made of"),
)  # fmt: skip
# Of torch's primitives, which are functions in Python: other devices, memory, tokens, and what trusts shapes.
_DENIED_PRIMS = r"resize|device_put|copy_.*|_.*token.*|_uniform_helper|item|fft_.*|svd|inductor.*|rng.*|empty_.*"
# Defined by other operators, and made by dovetail's own passes.
COMPOSITES = frozenset(
    (
        *("reshape", "contiguous", "linear", "matmul", "square", "alpha_dropout", "dropout", "feature_dropout"),
        *("feature_alpha_dropout", "batch_norm", "layer_norm", "group_norm", "rms_norm", "instance_norm"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("__and", "__or", "__xor", "__iand", "__ior", "__ixor"),
    )
)
# Frozen layers over whole tensors; those over packed sequences (`.data`) are not recorded as one operator.
RECURRENT = frozenset(
    (
        *("aten.gru.input", "aten.lstm.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"),
        *("aten.gru_cell.default", "aten.lstm_cell.default"),
    )
)
_PLAIN = frozenset(
    f"{wrapped}"
    for kind in ("Tensor", "int", "float", "bool", "number", "str", "Device")
    for wrapped in (kind, f"Optional[{kind}]", f"List[{kind}]", f"Optional[List[{kind}]]", f"List[Optional[{kind}]]")
) | {"Optional[Generator]"}


def reason_against(name: str) -> str | None:
    """Why no file may name an operator of this name, in any of its forms; None where nothing is against it."""
    base = name.rstrip("_") or name
    return next((reason for pattern, reason in DENIED if re.fullmatch(pattern, base)), None)


def listed() -> list[str]:
    """The overloads that a file may name with this torch, as `aten.add.Tensor`."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "prims" and not schema.is_mutable and not re.fullmatch(_DENIED_PRIMS, name):
            found.append(f"prims.{name}.{schema.overload_name or 'default'}")
        if space != "aten" or reason_against(name) is not None or not _is_defined(schema):
            continue
        types = [str(argument.type) for argument in (*schema.arguments, *schema.returns)]
        if _PLAIN.issuperset(types):
            found.append(f"aten.{name}.{schema.overload_name or 'default'}")
    return sorted({*found, *RECURRENT})


def _is_defined(schema: torch._C.FunctionSchema) -> bool:
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    if not torch._C._dispatch_has_kernel(full):
        return False
    keys = ["CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"]
    if schema.name.partition("::")[2].rstrip("_") in COMPOSITES:
        keys.append("CompositeImplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in keys)


def text() -> str:
    """The file."""
    head = f"# Overloads that a file may name. Made by docs/generate_operators.py with torch {torch.__version__[:4]}."
    return "\n".join([head, *listed(), ""])


if __name__ == "__main__":
    PATH.write_text(text())
