"""A child: TRL's SFTTrainer with PEFT on one case and random tokens, timed step by step as ours is.

Its fastest settings on one GPU: weights in bf16, Liger's kernels (norms, rotary, SwiGLU, the loss without logits), cuDNN's attention, the
fused optimizer, no gradient checkpointing, sequences of one length without padding. `--variant plain` is the same without Liger.

TRL imports the package datasets, of which nothing is used here: samples come from a list. Where it is missing, a stand-in takes its place.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import types
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import torch
from h200_parts.child import hand_over, note
from h200_parts.recorder import Recorder
from torch.nn.attention import SDPBackend, sdpa_kernel

from tune_parts.cases import ALPHA, RANK, TRAINING, Case, case_of, model_of

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
VARIANTS = ("liger", "plain", "compiled")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--variant", choices=VARIANTS, default="liger")
    given = parser.parse_args()
    os.environ.update({"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "WANDB_DISABLED": "true"})
    stand_in()
    if given.device == "cpu":
        score_plainly()
    hand_over(run(given.case, given.device, given.warmup, given.steps, given.variant))


def run(case: Case, device_type: str, num_warmup: int, num_steps: int, variant: str) -> dict[str, Any]:
    """The steps' figures."""
    import peft
    import trl

    recorder = Recorder(device_type, num_warmup, case.num_tokens)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(case, device_type, num_warmup + num_steps, variant, folder, recorder)
        if device_type == "cuda":
            note(f"weights {torch.cuda.memory_allocated() / 2**30:.2f} GiB")
        with sdpa_kernel(KERNELS, set_priority=True):
            trainer.train()
        read_losses(trainer, recorder)
    trained = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    return {"trainer": f"TRL {trl.__version__} + PEFT {peft.__version__} ({variant})", "num_trained": trained, **recorder.result()}


def trainer_of(case: Case, device_type: str, num_steps: int, variant: str, folder: str, recorder: Recorder) -> Any:
    """TRL's trainer for the case."""
    from peft import LoraConfig

    pairs = LoraConfig(r=RANK, lora_alpha=int(ALPHA), lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    model, settings = model_on(case, device_type), settings_of(case, device_type, num_steps, variant, folder)
    return keeping_losses()(
        model=model,
        args=settings,
        data_collator=stacked,
        train_dataset=data_of(case, num_steps),
        processing_class=tokenizer_of(),
        peft_config=pairs,
        callbacks=[timing(recorder)],
    )


def trained_with(case: Case, model: Any, tokenizer: Any, num_steps: int, folder: str, recorder: Recorder) -> int:
    """Train a model that has its adapters already, on a GPU, and return how many numbers were trained."""
    trainer = keeping_losses()(
        model=model,
        args=settings_of(case, "cuda", num_steps, "plain", folder),
        data_collator=stacked,
        train_dataset=data_of(case, num_steps),
        processing_class=tokenizer,
        callbacks=[timing(recorder)],
    )
    trainer.train()
    read_losses(trainer, recorder)
    return sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)


def keeping_losses() -> Any:
    """TRL's trainer, which keeps the loss of every step on the device: nobody waits for it between the steps."""
    from trl import SFTTrainer

    class Keeping(SFTTrainer):  # type: ignore[misc]
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(*args, **kwargs)
            self.kept_losses = [*getattr(self, "kept_losses", ()), loss.detach()]
            return loss

    return Keeping


def read_losses(trainer: Any, recorder: Recorder) -> None:
    """Give the recorder the losses, now that all steps are over."""
    kept = getattr(trainer, "kept_losses", ())  # none where another step takes the place of ours, as Unsloth may have it
    if kept:
        recorder.losses = [float(loss) for loss in kept]
        note(f"losses: first {recorder.losses[0]:.4f}, last {recorder.losses[-1]:.4f}")


def data_of(case: Case, num_steps: int) -> Any:
    """Random sequences for so many steps."""
    from datasets import Dataset

    return Dataset.from_list([{"input_ids": row, "labels": row} for row in drawn(case, num_steps * case.batch)])


def settings_of(case: Case, device_type: str, num_steps: int, variant: str, folder: str) -> Any:
    """TRL's settings for the case."""
    from trl import SFTConfig

    is_gpu = device_type == "cuda"
    return SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=case.batch,
        max_steps=num_steps,
        learning_rate=TRAINING.learning_rate,
        max_grad_norm=TRAINING.clip_norm,
        bf16=True,
        use_cpu=not is_gpu,
        optim="adamw_torch_fused" if is_gpu else "adamw_torch",
        gradient_checkpointing=False,
        use_liger_kernel=variant == "liger" and is_gpu,
        torch_compile=variant == "compiled" and is_gpu,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=1,
    )


def drawn(case: Case, count: int) -> list[list[int]]:
    """Random sequences."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, model_of(case).vocab_size, (count, case.seq_len), generator=generator).tolist()


def stacked(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch without padding: its mask hides nothing, so that attention gets none."""
    tokens = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": tokens, "labels": tokens.clone(), "attention_mask": torch.ones_like(tokens)}


def model_on(case: Case, device_type: str) -> Any:
    """A Llama of transformers with random weights in bf16, made on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = model_of(case)
    config = LlamaConfig(
        hidden_size=model.hidden,
        intermediate_size=model.ffn_hidden,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        max_position_embeddings=case.seq_len,
        rms_norm_eps=model.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": model.rotary_theta},
        tie_word_embeddings=model.tied_embeddings,
        attn_implementation="sdpa",
        use_cache=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device_type):
            return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)


def tokenizer_of() -> Any:
    """A tokenizer of three tokens: TRL asks for one, and nothing is tokenized."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<pad>": 2}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def timing(recorder: Recorder) -> Any:
    """A callback that tells the recorder where steps begin and end. Losses are read after all steps: reading makes the host wait."""
    from transformers import TrainerCallback

    class Timing(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            recorder.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            recorder.done(None)

    return Timing()


def stand_in() -> None:
    """Put a module with lists where the package datasets is missing."""
    if find_spec("datasets") is not None:
        return

    class Dataset(list[Any]):
        """Rows in a list, with the few names that TRL asks for."""

        column_names = ("input_ids", "labels")
        cache_files = ()

        @classmethod
        def from_list(cls, rows: list[Any]) -> Dataset:
            """The rows."""
            return cls(rows)

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock()

    for name in ("datasets", "datasets.features", "datasets.distributed", "datasets.fingerprint"):
        module = Module(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        sys.modules[name] = module
    empty = {each: type(each, (), {}) for each in ("IterableDataset", "DatasetDict", "IterableDatasetDict")}
    vars(sys.modules["datasets"]).update({"Dataset": Dataset, **empty, "__version__": "0"})


def score_plainly() -> None:
    """Without a GPU, where TRL's kernel of the loss cannot run, let plain operations take its place."""
    from trl.trainer import utils

    def scored(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        shares = torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias).float(), dim=-1)
        chosen = shares.gather(-1, labels[:, None])[:, 0]
        return chosen, -(shares.exp() * shares).sum(-1), None, None, shares.argmax(-1) == labels

    utils._ChunkedLogProbFunction = types.SimpleNamespace(apply=scored)


if __name__ == "__main__":
    main()
