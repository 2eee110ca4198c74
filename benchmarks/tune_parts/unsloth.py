"""A child: Unsloth on one case and random tokens, timed step by step as ours is.

Unsloth loads models from files alone, so a folder with random weights is written to the disk of the machine first (16 GB for 8B), and
removed at the end. Its fastest settings: a base in bf16, no gradient checkpointing, no dropout, TRL's trainer as Unsloth changes it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

os.environ.update({"HF_HUB_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1", "WANDB_DISABLED": "true", "UNSLOTH_IS_PRESENT": "1"})
LEAST_DISK_BYTES = 2.2  # of a model in bf16, for each parameter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    from h200_parts.child import hand_over

    from tune_parts.cases import case_of, model_of

    case = case_of(given.case)
    if given.device == "cpu":
        hand_over({"refused": "Unsloth does not run without a GPU"})
        return
    needed = LEAST_DISK_BYTES * model_of(case).num_parameters
    with tempfile.TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < needed:
            hand_over({"refused": f"the folder of its model needs {needed / 1e9:.0f} GB of disk, and fewer are free"})
            return
        hand_over(run(case, given.warmup, given.steps, Path(folder)))


def run(case: Any, num_warmup: int, num_steps: int, folder: Path) -> dict[str, Any]:
    """The steps' figures."""
    import unsloth  # noqa: I001 - it replaces parts of the others, so it comes first
    from unsloth import FastLanguageModel
    import torch
    from h200_parts.recorder import Recorder

    from tune_parts.cases import ALPHA, RANK
    from tune_parts.trl_peft import TARGETS, model_on, tokenizer_of, trained_with

    written = folder / "model"
    model_on(case, "cuda").save_pretrained(written)
    tokenizer_of().save_pretrained(written)
    torch.cuda.empty_cache()
    model, tokenizer = FastLanguageModel.from_pretrained(
        str(written),
        max_seq_length=case.seq_len,
        dtype=torch.bfloat16,
        load_in_4bit=case.base == "nf4",
        local_files_only=True,
        use_gradient_checkpointing=False,
    )
    model = FastLanguageModel.get_peft_model(
        model, r=RANK, lora_alpha=int(ALPHA), lora_dropout=0.0, target_modules=TARGETS, use_gradient_checkpointing=False, random_state=1
    )
    recorder = Recorder("cuda", num_warmup, case.num_tokens)
    trained = trained_with(case, model, tokenizer, num_warmup + num_steps, str(folder / "out"), recorder)
    return {"trainer": f"Unsloth {unsloth.__version__}", "num_trained": trained, **recorder.result()}


if __name__ == "__main__":
    main()
