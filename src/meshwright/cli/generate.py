"""Let a trained model continue a text, to see what it has learned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.options import AsJson, BaseModel

if TYPE_CHECKING:
    from meshwright.say.document import Document

MOST_TOKENS = 10**6
# A model may write escape codes that a terminal would execute. There, control characters are replaced by symbols, except tab and newline.
PICTURES = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {127: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def generate(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder (runs/NAME), a Hugging Face folder of a Llama model, or an adapter."),
    ],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="Text to continue; '' begins a new document.")],
    tokens: Annotated[int, typer.Option(metavar="N", min=0, max=MOST_TOKENS, help="Maximum number of new tokens.")] = 100,
    temperature: Annotated[
        float, typer.Option(metavar="X", help="0 always chooses the most probable token; 1 draws with the model's probabilities.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option(metavar="K", help="Draw from the K most probable tokens only; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw from the fewest tokens whose probabilities add up to this, 0 to 1.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Seed; the same seed gives the same text.")] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask the prompt as a user, through the chat template, and print the assistant's answer.")
    ] = False,
    base_model: BaseModel = None,
    as_json: AsJson = False,
) -> None:
    """Print a prompt and how a trained model continues it.

    Examples:

      meshwright generate runs/first --prompt "Once upon a time"

      meshwright generate runs/tuned --chat --prompt "Import os." --tokens 50 --temperature 0 --json
    """
    from meshwright.cli.show import show
    from meshwright.cli.train_run import torch_or_error
    from meshwright.train.folders import check_trained
    from meshwright.train.model.sampling import check_sampling

    check_sampling(temperature, top_k, top_p)
    check_trained(run)
    torch_or_error()
    import torch  # takes seconds, so mistakes are reported first

    from meshwright.train.interop.trained import load_trained
    from meshwright.train.model import generate as by_model

    trained = load_trained(run, torch.device("cuda" if torch.cuda.is_available() else "cpu"), base_model)
    given = trained.chat_tokens(prompt) if chat else trained.tokens_of(prompt)
    trained.check_fits(len(given), tokens)
    drawn = by_model.generate(
        trained.transformer,
        given,
        tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_tokens=trained.stop_tokens,
        vocab_size=trained.tokenizer.vocab_size,
    )
    if not as_json:
        _stream(trained, prompt, given, drawn, chat=chat)
        return
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    show(_document(trained, prompt, given, list(drawn), settings), as_json=True)


def _stream(trained: Any, prompt: str, given: Sequence[int], drawn: Iterable[int], *, chat: bool) -> None:
    """Print the text as it grows; print on stderr which weights wrote it."""
    import sys

    for line in (trained.source, *trained.notes):
        print(line, file=sys.stderr)
    print(prompt, end="\n" if chat else "", flush=True)
    text_of = _decoder(trained, given)
    pictures = PICTURES if sys.stdout.isatty() else {}
    for token in drawn:
        print(text_of(token).translate(pictures), end="", flush=True)
    print()


def _document(trained: Any, prompt: str, given: Sequence[int], new: Sequence[int], settings: dict[str, float]) -> Document:
    from meshwright.say.document import Document

    text_of = _decoder(trained, given)
    values = {
        "weights_from": trained.source,
        "model": trained.transformer.model.name,
        **settings,
        "prompt": prompt,
        "continuation": "".join(text_of(token) for token in new),
        "prompt_tokens": given,
        "new_tokens": new,
        "is_ended": bool(new) and new[-1] in trained.stop_tokens,
        "notes": trained.notes,
    }
    return Document(kind="generation", title=f"text by {trained.source}", values=values)


def _decoder(trained: Any, given: Sequence[int]) -> Callable[[int], str]:
    """A function that returns the text that each next token adds: none until a character of several bytes is complete."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(ids=list(given), skip_special_tokens=True)
    return lambda token: stream.step(trained.tokenizer.inner, token) or ""
