"""Other tools on the same model, as the fuzzer puts them on and takes them off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module
from peft import LoraConfig

from tests.tiny import Tiny


def put_on(name: str, tiny: Tiny) -> Callable[[], None]:
    """Put a tool on; the result takes it off."""
    return _TOOLS[name](tiny)


def _nothing(_: Tiny) -> Callable[[], None]:
    return lambda: None


def _lora(tiny: Tiny) -> Callable[[], None]:
    torch.manual_seed(3)
    config = LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
    tiny.model.add_adapter(config, adapter_name="style")
    tiny.model.to(next(tiny.model.parameters()).dtype)

    def off() -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        for path, module in list(tiny.model.named_modules()):
            if isinstance(module, BaseTunerLayer):
                parent, _, name = path.rpartition(".")
                setattr(tiny.model.get_submodule(parent), name, module.get_base_layer())
        tiny.model.__dict__.pop("peft_config", None)
        tiny.model._hf_peft_config_loaded = False

    return off


def _offloading(tiny: Tiny) -> Callable[[], None]:
    for module in (tiny.model, *(module for name, module in tiny.model.named_modules() if name.endswith("attn1"))):
        add_hook_to_module(module, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    return lambda: remove_hook_from_module(tiny.model, recurse=True)


def _cache(config: Callable[[], Any]) -> Callable[[Tiny], Callable[[], None]]:
    def on(tiny: Tiny) -> Callable[[], None]:
        tiny.model.enable_cache(config())
        return tiny.model.disable_cache

    return on


def _slicing(tiny: Tiny) -> Callable[[], None]:
    tiny.pipe.enable_attention_slicing(1)
    return tiny.pipe.disable_attention_slicing


def _compiled(tiny: Tiny) -> Callable[[], None]:
    """Every block on its own, as diffusers recommends; its graphs run eagerly, so that nothing rounds otherwise."""
    torch._dynamo.reset()
    tiny.model.compile_repeated_blocks(backend="eager", fullgraph=True)

    def off() -> None:
        for module in tiny.model.modules():
            module._compiled_call_impl = None

    return off


_TOOLS: dict[str, Callable[[Tiny], Callable[[], None]]] = {
    "none": _nothing,
    "LoRA": _lora,
    "offloading": _offloading,
    "first block cache": _cache(lambda: diffusers.FirstBlockCacheConfig(threshold=0.5)),
    "TaylorSeer": _cache(
        lambda: diffusers.TaylorSeerCacheConfig(cache_interval=3, disable_cache_before_step=2, use_lite_mode=True)
    ),
    "attention slicing": _slicing,
    "compiled blocks": _compiled,
}
