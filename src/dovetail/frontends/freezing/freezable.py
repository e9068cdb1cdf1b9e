"""The modules that freezing refuses by name, before it does anything: those whose code or weights it cannot handle.

Parametrizations (`torch.nn.utils.parametrize`), compiled modules and dynamically quantized linear layers freeze as they
are: what they compute is recorded, or folded. The older hooks that write `weight` before each call are refused, because
a recorded program does not write attributes; each has a function that takes it away and leaves the weight in place.
"""

from __future__ import annotations

import torch

from dovetail.errors import NotFreezable
from dovetail.torch_compat.modules import forward_pre_hooks

_UNWRAP = "freeze the module inside: model.module"
_FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel"
# Classes by their names, so that none is imported for the question: what they are, and the way out.
_WRAPPERS: dict[str, tuple[str, str]] = {
    "torch.nn.parallel.distributed.DistributedDataParallel": ("it is a wrapper for several processes", _UNWRAP),
    "torch.nn.parallel.data_parallel.DataParallel": ("it is a wrapper for several devices", _UNWRAP),
    _FSDP: (
        "its weights are sharded over several processes",
        "load its full state dict into the plain module, and freeze that",
    ),
    "torch.jit._script.ScriptModule": ("it is TorchScript", "freeze the module that it was made from"),
    "torch.ao.quantization.fake_quantize.FakeQuantizeBase": (
        "it quantizes for training, with ranges observed at run time",
        "freeze the model before it is prepared for quantization",
    ),
    "torch.ao.quantization.observer.ObserverBase": (
        "it observes ranges for quantization in Python",
        "freeze the model before it is prepared for quantization",
    ),
}
_QUANTIZED = ("torch.ao.nn.quantized.modules", "torch.ao.nn.intrinsic.quantized.modules")
_PACKED = "LinearPackedParams"  # a part of dynamically quantized layers
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # and no parameters that are not made yet
_HOOKS: dict[str, str] = {
    "torch.nn.utils.weight_norm.WeightNorm": (
        "call torch.nn.utils.remove_weight_norm(module) first, or use torch.nn.utils.parametrizations.weight_norm"
    ),
    "torch.nn.utils.spectral_norm.SpectralNorm": (
        "call torch.nn.utils.remove_spectral_norm(module) first, or use torch.nn.utils.parametrizations.spectral_norm"
    ),
    "torch.nn.utils.prune.BasePruningMethod": "call torch.nn.utils.prune.remove(module, name) first",
}


def refuse_not_freezable(model: torch.nn.Module) -> None:
    """Raise NotFreezable for a module, or one inside it, that freezing does not take; nothing is run."""
    _refuse_meta(model)
    for place, module in model.named_modules():
        what = f"{place or 'the model'}, a {type(module).__name__},"
        names = [f"{cls.__module__}.{cls.__qualname__}" for cls in type(module).__mro__]
        for name in names:
            if name in _WRAPPERS:
                reason, hint = _WRAPPERS[name]
                raise NotFreezable(what=what, reason=reason, hint=hint)
        if type(module).__module__.startswith(_QUANTIZED) and type(module).__name__ != _PACKED:
            hint = "freeze the model before it is converted; dynamically quantized linear layers can be frozen"
            raise NotFreezable(what=what, reason="it works on quantized tensors, which are not supported", hint=hint)
        _refuse_hooks(what, module)


def _refuse_hooks(what: str, module: torch.nn.Module) -> None:
    for hook in forward_pre_hooks(module):
        for cls in type(hook).__mro__:
            hint = _HOOKS.get(f"{cls.__module__}.{cls.__qualname__}")
            if hint is not None:
                reason = f"a hook ({type(hook).__name__}) recomputes its weight before each call"
                raise NotFreezable(what=what, reason=reason, hint=hint)


def _refuse_meta(model: torch.nn.Module) -> None:
    """A model that was made on the meta device, and never got its weights."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if tensors and all(type(tensor) in _PLAIN and tensor.device.type == "meta" for _, tensor in tensors):
        reason = f"its weights ({tensors[0][0]}, ...) are on the meta device, and have no data"
        hint = "give it data first: model.to_empty(device='cpu'), then load a state dict"
        raise NotFreezable(what=f"the model, a {type(model).__name__},", reason=reason, hint=hint)
