"""Five public styles of chat templates, with the marks of the assistant's words, and a tokenizer that knows their special tokens."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

SPECIAL = (
    "<s>", "</s>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>",
    "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>",
)  # fmt: skip

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
        {%- if message.tool_calls %}
            {{- '{"name": "' + message.tool_calls[0].function.name + '"}' }}
        {%- else %}
            {{- message['content'] | trim }}
        {%- endif %}
        {{- '<|eot_id|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}{%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% endif %}{% endfor %}"
)
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'assistant' %}
{{ '<|assistant|>\\n' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\\n' }}
{%- else %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
"""
GEMMA = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}{{ '<start_of_turn>model\\n' }}
{%- generation %}{{ message['content'] | trim + '<end_of_turn>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}{{ '<start_of_turn>' + message['role'] + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

STYLES = {
    "llama-3": (LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    "chatml": (CHATML, "<|endoftext|>", "<|im_end|>"),
    "mistral": (MISTRAL, "<s>", "</s>"),
    "zephyr": (ZEPHYR, "<s>", "</s>"),
    "gemma": (GEMMA, "<bos>", "<eos>"),
}


def without_marks(template: str) -> str:
    """A template as most models have it; what a mark did to the white space around it is done by an empty comment."""
    return re.sub(r"\{%(-?)\s*(?:end)?generation\s*(-?)%\}", r"{#\1 \2#}", template)


@cache
def tokenizer_content() -> bytes:
    """A byte-level tokenizer that knows the special tokens of all styles."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, initial_alphabet=alphabet)
    inner.train_from_iterator([Path(__file__).read_text(encoding="utf-8") * 2], trainer)
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return str(inner.to_str()).encode()


def write_tokenizer(folder: Path, template: str, bos: str, eos: str) -> None:
    """The tokenizer's files of a model folder."""
    (folder / "tokenizer.json").write_bytes(tokenizer_content())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos}
    if template:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
