"""A child: torchtitan 0.2.2 on one case and random tokens, timed step by step as ours is, or one step under the profiler.

Its own Trainer, model, optimizer and metrics run; the model's shapes come from our description, tokens are drawn, and its log call is where
times and peaks are read, before it resets them. Packages that it imports and nothing here uses are stood in for where they are missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

from h200_parts import titan_experts
from h200_parts.cases import END, Case, batch_of, case_of, model_of
from h200_parts.child import hand_over
from h200_parts.kinds import STEPS_BETWEEN, annotated, shares_of, start_trace, stop_trace
from h200_parts.recorder import Recorder

FLAVOR, MODEL_NAME = "case", "model_of_the_case"
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", type=case_of, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    stand_in(given.device)
    os.environ.update({**ONE_RANK, "MASTER_PORT": str(20000 + os.getpid() % 20000)})
    with tempfile.TemporaryDirectory() as folder:
        hand_over(run(given, Path(folder)))
    os._exit(0)  # torchtitan's threads and groups need no farewell


def run(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The steps' figures."""
    case: Case = given.case
    trainer = trainer_of(case, given.device, given.warmup + given.steps + (STEPS_BETWEEN + 3 if given.profile else 0), folder)
    recorder = Recorder(given.device, given.warmup, case.num_tokens)
    last = given.warmup + given.steps
    shares: dict[str, Any] = {}
    listen(trainer, recorder, last, given.device, folder / "trace.json" if given.profile else None, shares)
    _spare_the_sleep()
    recorder.start()
    trainer.train()
    count = sum(parameter.numel() for part in trainer.model_parts for parameter in part.parameters())
    result = {"trainer": "torchtitan 0.2.2", "num_parameters": count, **recorder.result()}
    if shares:
        result["profile"] = shares_of(shares["path"], result["mean_s"], given.device)
    return result


def listen(trainer: Any, recorder: Recorder, last: int, device_type: str, trace: Path | None, shares: dict[str, Any]) -> None:
    """Read times and peaks inside the trainer's log call; and trace two steps after the last timed one, of which the second counts."""
    processor = trainer.metrics_processor
    inner = processor.log
    profilers: list[torch.profiler.profile] = []

    def log(step: int, loss: float, *others: Any, **named: Any) -> None:
        if step <= last:
            recorder.done(loss)
        if profilers:
            stop_trace(profilers.pop(), trace, device_type)
            shares["path"] = trace
        inner(step, loss, *others, **named)
        if trace is not None and step in (last + 1, last + STEPS_BETWEEN + 2):
            profilers.append(start_trace(device_type))
        recorder.start()

    processor.log = log
    if trace is not None:
        annotate(trainer)


def _spare_the_sleep() -> None:
    """After its last step torchtitan waits two seconds for other ranks: there are none."""
    import torchtitan.train

    torchtitan.train.time = types.SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)


def annotate(trainer: Any) -> None:
    """Mark the loss and the clipping in traces; its optimizer marks itself."""
    from torchtitan.distributed import utils

    trainer.loss_fn = annotated(trainer.loss_fn, "loss")
    utils.clip_grad_norm_ = annotated(utils.clip_grad_norm_, "optimizer")


def trainer_of(case: Case, device_type: str, num_steps: int, folder: Path) -> Any:
    """torchtitan's trainer for the case."""
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.config import ConfigManager
    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.tools.logging import init_logger
    from torchtitan.train import Trainer

    class RandomTokens(BaseDataLoader):
        """Batches of drawn tokens, without end."""

        def __iter__(self) -> Iterator[Any]:
            generator = np.random.default_rng(1)
            while True:
                tokens = torch.from_numpy(batch_of(case, generator))
                yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    family, table = family_of(case)
    getattr(family, table)[FLAVOR] = arguments_of(case, is_gpu=device_type == "cuda")
    words = types.SimpleNamespace(eos_id=END)  # all that it asks a tokenizer for
    spec = dataclasses.replace(family.get_train_spec(), build_tokenizer_fn=lambda _: words, build_dataloader_fn=lambda **_: RandomTokens())
    register_train_spec(MODEL_NAME, spec)
    init_logger()
    return Trainer(ConfigManager().parse_args(options_of(case, device_type, num_steps, folder)))


def family_of(case: Case) -> tuple[types.ModuleType, str]:
    """torchtitan's module of a model, and the name of its table of models."""
    if model_of(case).experts:
        return titan_experts.family_of(model_of(case))
    import torchtitan.models.llama3 as llama

    return llama, "llama3_args"


def arguments_of(case: Case, *, is_gpu: bool) -> Any:
    """Our description of the model in torchtitan's words."""
    return titan_experts.arguments_of(model_of(case), case.seq_len, is_gpu=is_gpu) if model_of(case).experts else llama_arguments_of(case)


def llama_arguments_of(case: Case) -> Any:
    """Our description of the model in torchtitan's words. It derives the MLP's width: the factor is chosen so that ours comes out."""
    from torchtitan.models.llama3.model.args import TransformerModelArgs

    model, unit = model_of(case), 64
    third = int(2 * 4 * model.hidden / 3)
    factor = (model.ffn_hidden - unit / 2) / third
    width = unit * -(-int(factor * third) // unit)
    if width != model.ffn_hidden:
        raise SystemExit(f"torchtitan would make the MLP {width} wide, not {model.ffn_hidden}")
    return TransformerModelArgs(
        dim=model.hidden,
        n_layers=model.num_layers,
        n_heads=model.num_heads,
        n_kv_heads=model.num_kv_heads,
        vocab_size=model.vocab_size,
        multiple_of=unit,
        ffn_dim_multiplier=factor,
        norm_eps=model.norm_epsilon,
        rope_theta=model.rotary_theta,
        **({"attn_type": "varlen", "attn_mask_type": "block_causal", "eos_id": END} if case.document else {}),
    )


def options_of(case: Case, device_type: str, num_steps: int, folder: Path) -> list[str]:
    """torchtitan's command line: its fastest settings for one GPU."""
    is_gpu = device_type == "cuda"
    options = {
        "--model.name": MODEL_NAME,
        "--model.flavor": FLAVOR,
        "--training.seq_len": str(case.seq_len),
        "--training.local_batch_size": str(case.batch),
        "--training.steps": str(num_steps),
        "--training.dtype": {"bf16": "bfloat16", "fp32": "float32"}[case.states],
        "--metrics.log_freq": "1",
        "--optimizer.implementation": "fused" if is_gpu else "for-loop",
        **({"--optimizer.lr": str(case.learning_rate)} if model_of(case).experts else {}),
        "--activation_checkpoint.mode": case.recompute,
        "--lr_scheduler.warmup_steps": "2",
        "--job.dump_folder": str(folder),
    }
    words = [word for pair in options.items() for word in pair]
    if is_gpu:
        words.append("--compile.enable")
    if case.is_fp8 and is_gpu:
        words += ["--model.converters", "quantize.linear.float8", "--quantize.linear.float8.recipe_name", "tensorwise"]
        words += ["--quantize.linear.float8.filter_fqns", "output"]
    return words


def stand_in(device_type: str) -> None:
    """Put empty modules where torchtitan imports what is not there and not used; on a processor, also its device."""
    if find_spec("datasets") is None:
        _put("datasets.distributed", split_dataset_by_node=None)
        _put("datasets", Dataset=object, load_dataset=None, distributed=sys.modules["datasets.distributed"])
    if find_spec("tensorboard") is None:
        _put("torch.utils.tensorboard", SummaryWriter=object)
    if device_type == "cpu":
        if find_spec("triton") is None:
            sys.modules["torchtitan.models.moe.kernels"] = MagicMock()
        _pretend_device()
        counted = torch.histc  # which takes no integers on a processor
        torch.histc = lambda values, *others, **named: counted(values.float(), *others, **named).to(values.dtype)


def _put(name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


def _pretend_device() -> None:
    """Let torchtitan, which looks for an accelerator, find the processor."""
    import torch._utils as found

    memory = types.SimpleNamespace(total_memory=2**34)
    module = MagicMock()
    module.get_device_name.return_value = "cpu"
    module.get_device_properties.return_value = memory
    module.current_device.return_value = 0
    module.device_count.return_value = 1
    module.memory_stats.return_value = {"num_alloc_retries": 0, "num_ooms": 0}
    found._get_available_device_type = lambda: "cpu"
    found._get_device_module = lambda _: module


if __name__ == "__main__":
    main()
