"""Settings of runs that are logged: those of MLPerf's llama31_8b, and those of a small run of our own benchmark."""

from __future__ import annotations

from dataclasses import replace

from meshwright.describe.load import load_model
from meshwright.train.benchmark.settings import LogSettings

LLAMA_8B = LogSettings(
    model=load_model("llama-3.1-8b"),
    dataset="c4",
    platform="1x H200",
    organisation="meshwright",
    seed=7,
    global_batch=16,
    gradient_accumulation_steps=4,
    sequence_length=8192,
    train_samples=1_574_207_408,
    eval_samples=1024,
    target=3.3,
    max_steps=1_200_000,
    base_learning_rate=4e-4,
    end_learning_rate=4e-5,
    warmup_steps=16,
    decay_steps=1_199_984,
    beta_1=0.9,
    beta_2=0.95,
    epsilon=1e-5,
    weight_decay=0.1,
    clip_norm=1.0,
    micro_batch=1,
    tp=1,
    pp=1,
    cp=1,
    precision="bf16",
)
SMALL = replace(
    LLAMA_8B,
    model=replace(LLAMA_8B.model, name="small", num_layers=4, hidden=256),
    dataset="the Python standard library's sources",
    sequence_length=128,
    train_samples=20_000,
    eval_samples=64,
    max_steps=400,
    decay_steps=384,
    precision="fp32",
)
LORA_70B = replace(
    LLAMA_8B,
    model=load_model("llama-2-70b"),
    dataset="scrolls_gov_report_8k",
    global_batch=8,
    train_samples=3901,
    eval_samples=173,
    target=0.925,
    max_steps=1024,
    end_learning_rate=0.0,
    warmup_steps=0,
    decay_steps=1024,
    beta_2=0.999,
    epsilon=1e-8,
    weight_decay=1e-4,
    clip_norm=0.3,
    lora_rank=16,
    lora_alpha=32.0,
    lora_dropout=0.1,
    lora_matrices=("q", "k", "v", "o"),
)
