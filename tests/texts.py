"""Tiny text encoders and their tokenizers, of the classes that pipelines ask for: random weights, nothing downloaded.

A token is a byte of the text, whichever tokenizer cuts it.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from tests import tiny
from tests.evaluation.networks import ClipImages
from tests.newer import WIDTH

# Without torchvision, transformers takes this for the usual name; asking for it directly keeps it quiet.
QwenImages = getattr(transformers, "Qwen2VLImageProcessorPil", transformers.Qwen2VLImageProcessor)
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
LETTERS = (*sorted(ByteLevel.alphabet()), *MARKS)
IDS = {letter: place for place, letter in enumerate(LETTERS)}
PAD = IDS["<|endoftext|>"]
CHAT = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content if message.content is string else message.content[-1].text }}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{%- endif -%}"""
LAST = "{{ messages[-1].content[-1].text }}"  # the user's words alone

# ---------------------------------------------------------------------------------------------- tokenizers
_PIECES = ("▁", *(chr(code) for code in range(33, 127)))


def qwen_tokenizer(length: int = 512) -> Any:
    """Bytes and the marks of a chat."""
    return transformers.Qwen2Tokenizer(
        vocab=IDS, merges=[], chat_template=CHAT, additional_special_tokens=list(MARKS), model_max_length=length
    )


def llama_tokenizer() -> Any:
    """Letters, as sentencepiece cuts them."""
    words = {word: place for place, word in enumerate(("<unk>", "<s>", "</s>", *_PIECES))}
    return transformers.LlamaTokenizer(vocab=words, merges=[], pad_token="</s>", model_max_length=64)


def gemma_tokenizer() -> Any:
    """Letters, as sentencepiece cuts them, with a token for padding."""
    words = {word: place for place, word in enumerate(("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *_PIECES))}
    return transformers.GemmaTokenizer(vocab=words, merges=[], model_max_length=64, add_bos_token=True)


def header_tokenizer() -> Any:
    """Llama 3's marks of headers, by which an image-to-video pipeline finds where a prompt ends."""
    return transformers.Qwen2Tokenizer(vocab=IDS, merges=[], additional_special_tokens=["<|end_header_id|>", "<image>"])


def bytes_tokenizer() -> Any:
    """ByT5's, which needs no vocabulary."""
    return transformers.ByT5Tokenizer(extra_ids=0)


def glm_tokenizer() -> Any:
    """GLM's, which begins every text, an empty one too."""
    tokenizer = qwen_tokenizer()
    begun = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", IDS["<|im_start|>"])])
    tokenizer.backend_tokenizer.post_processor = begun
    return tokenizer


def processor(chat: str = CHAT) -> Any:
    """A tokenizer with a processor of images, in the place of Pixtral's, which wants torchvision."""
    return transformers.LlavaProcessor(ClipImages(), qwen_tokenizer(), chat_template=chat)


def qwen_processor(name: str, chat: str = CHAT) -> Any:
    """One of Qwen's without its processor of videos, which wants torchvision."""
    kind = getattr(transformers, name)
    alone = type(name, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    images = QwenImages(patch_size=16, min_pixels=32 * 32, max_pixels=64 * 64)
    return alone(images, qwen_tokenizer(), None, chat_template=chat)


# ---------------------------------------------------------------------------------------------- encoders
def decoder_sizes(width: int = WIDTH, layers: int = 3) -> dict[str, Any]:
    """Of a language model that has one key head for two of queries."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": width // 2}
    width_of = {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": layers}
    return {
        **width_of,
        **heads,
        "vocab_size": len(LETTERS),
        "pad_token_id": PAD,
        "bos_token_id": PAD,
        "eos_token_id": PAD,
    }


def language_model(name: str, width: int = WIDTH, **more: Any) -> Any:
    """A decoder of text alone, such as Qwen3Model."""
    kind = getattr(transformers, name)
    return _random(kind, kind.config_class(**decoder_sizes(width), **more))


def qwen_vl(name: str, width: int = WIDTH) -> Any:
    """Qwen2.5-VL or Qwen3-VL: text whose positions have three axes, beside a tower for images."""
    kind = getattr(transformers, name)
    axes = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [width // 4 - 2, 1, 1]}
    text = {**decoder_sizes(width), "rope_parameters": axes}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": width}
    vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 16, "patch_size": 16}
    vision |= {"fullatt_block_indexes": [0], "window_size": 64}
    marks = {f"{name}_token_id": IDS[f"<|{mark}|>"] for name, mark in _VISION.items()}
    return _random(kind, kind.config_class(text_config=text, vision_config=vision, **marks))


_VISION = {"image": "image_pad", "vision_start": "vision_start", "vision_end": "vision_end"}


def qwen35() -> Any:
    """Qwen3.5, which writes a longer prompt; its layers of linear attention are left out."""
    axes = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}
    text = {**decoder_sizes(), "layer_types": ["full_attention"] * 3, "rope_parameters": axes}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": WIDTH}
    config = transformers.Qwen3_5Config(text_config=text, vision_config={**vision, "num_position_embeddings": 16})
    return _random(transformers.Qwen3_5ForConditionalGeneration, config)


def mistral3(name: str) -> Any:
    """Mistral's text beside Pixtral's tower for images."""
    kind = getattr(transformers, name)
    vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 32, "patch_size": 16}
    text = {"model_type": "mistral", **decoder_sizes()}
    return _random(kind, kind.config_class(text_config=text, vision_config=vision))


def llava() -> Any:
    """Llama's text beside CLIP's tower for images."""
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 2, "image_size": 32, "patch_size": 16}
    text = {"model_type": "llama", **decoder_sizes(), "vocab_size": len(LETTERS) + 2}
    marks = {"image_token_index": len(LETTERS) + 1, "pad_token_id": PAD}
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, **marks)
    return _random(transformers.LlavaForConditionalGeneration, config)


def gemma3() -> Any:
    """Gemma 3 with its tower for images, which texts do not enter."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 32, "patch_size": 16}
    config = transformers.Gemma3Config(text_config=decoder_sizes(layers=2), vision_config=vision, mm_tokens_per_image=4)
    return _random(transformers.Gemma3ForConditionalGeneration, config)


def glm_image() -> tuple[Any, Any]:
    """What writes the tokens of an image before it is denoised, and its processor."""
    marks = {"image_token": "<|image_pad|>", "grid_bos_token": "<|im_start|>", "grid_eos_token": "<|im_end|>"}
    tokenizer = transformers.Qwen2Tokenizer(
        vocab=IDS, merges=[], bos_token="<|vision_start|>", extra_special_tokens=marks, chat_template=CHAT
    )
    images = transformers.models.glm_image.image_processing_pil_glm_image.GlmImageImageProcessorPil()
    axes = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}
    text = {**decoder_sizes(layers=1), "vision_vocab_size": 32, "rope_parameters": axes}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "image_size": 32}
    config = transformers.GlmImageConfig(
        text_config=text, vision_config=vision, vq_config={"embed_dim": 8, "num_embeddings": 32, "latent_channels": 16},
        image_token_id=IDS["<|image_pad|>"], image_start_token_id=IDS["<|vision_start|>"],
        image_end_token_id=IDS["<|vision_end|>"],
    )  # fmt: skip
    encoder = _random(transformers.GlmImageForConditionalGeneration, config)
    return encoder, transformers.GlmImageProcessor(images, tokenizer, chat_template=CHAT)


def t5(name: str = "T5EncoderModel", width: int = WIDTH) -> Any:
    """T5 or UMT5, for tokenizers of at most 400 tokens: ByT5 has 259 of them."""
    kind = getattr(transformers, name)
    sizes = {"d_model": width, "d_kv": 8, "d_ff": width, "num_layers": 1, "num_heads": 2}
    return _random(kind, kind.config_class(vocab_size=400, **sizes))


def _random(kind: Any, config: Any) -> Any:
    """Weights ten times as large as they begin: the first of them are too small for a text to show in an image."""
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


t5_tokenizer, clip_tokenizer, clip = tiny._t5_tokenizer, tiny._clip_tokenizer, tiny._clip
