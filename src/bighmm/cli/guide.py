"""`bighmm guide`: texts of a language model that satisfy a rule, guided by an HMM."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    ModelPath,
    NoUnk,
    Seed,
    note_absent,
    parse,
    print_json,
)
from bighmm.cli.rules import NO_RULE, RuleFlags
from bighmm.guide.settings import GuideSettings


@dataclass(frozen=True)
class GuideArguments:
    """Text of a language model under a rule, which is about what stands after the prefix."""

    model: ModelPath
    language_model: Annotated[
        str,
        tyro.conf.Positional,
        tyro.conf.arg(
            metavar="LM",
            help="The model that the HMM was distilled from: a Hugging Face model's folder or "
            "name, or a .gguf file.",
        ),
    ]
    rule: RuleFlags = NO_RULE
    prompt: Annotated[
        str | None, tyro.conf.arg(help="What the language model reads first; no part of the text.")
    ] = None
    chat: Annotated[
        bool, tyro.conf.arg(help="Put the prompt through the model's chat template.")
    ] = False
    prefix: Annotated[str, tyro.conf.arg(help="What every text begins with.")] = ""
    suffix: Annotated[str, tyro.conf.arg(help="What every text ends with.")] = ""
    n: Annotated[int, tyro.conf.arg(help="How many texts.")] = 3
    length: Annotated[
        int,
        tyro.conf.arg(
            help="Tokens after the prefix at most, the end mark not counted; 31: with the end mark "
            "a window of 32."
        ),
    ] = GuideSettings.length
    beams: Annotated[
        int, tyro.conf.arg(help="Search for likely texts with so many beams; 0 samples instead.")
    ] = 0
    temperature: Annotated[float, tyro.conf.arg(help="Below 1 sharper, above 1 flatter.")] = 1.0
    top_p: Annotated[
        float, tyro.conf.arg(help="Sample among the likeliest tokens of this probability in all.")
    ] = 1.0
    top_k: Annotated[
        int | None, tyro.conf.arg(help="Sample among so many of the likeliest tokens.")
    ] = None
    no_unk: NoUnk = False
    seed: Seed = None
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def guide_command(argv: list[str]) -> None:
    """Print texts of a language model that satisfy a rule."""
    arguments = parse(GuideArguments, argv, "guide")
    settings = GuideSettings(
        length=arguments.length,
        n=arguments.n,
        beams=arguments.beams,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed,
    )
    if not arguments.rule.given:
        raise ValueError("there is no rule to guide by; give --must, --not, --regex or another")
    from bighmm.guide.texts import write
    from bighmm.interop.language_model import LanguageModel
    from bighmm.lm.questions import without_unknown

    lm = arguments.compute.open_hmm(arguments.model, "probabilities of rules")
    rule = arguments.rule.asked().of(lm.tokenizer)
    assert rule is not None
    note_absent(lm, arguments.rule.must_not)
    if arguments.no_unk:
        rule = without_unknown(lm.tokenizer, rule)
    (texts,) = write(
        LanguageModel(arguments.language_model, lm.device),
        lm,
        [rule],
        settings,
        prompts=() if arguments.prompt is None else (arguments.prompt,),
        chat=arguments.chat,
        prefix=arguments.prefix,
        suffix=arguments.suffix,
    )
    if arguments.as_json:
        print_json({"rule": str(rule), "texts": [asdict(text) for text in texts]})
        return
    for text in texts:
        print(f"{text.perplexity:.1f}\t{text.text}")
