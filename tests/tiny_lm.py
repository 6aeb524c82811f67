"""A language model small enough to be made on the fly."""

import pytest
import tokenizers
import torch

MARKS = ["<eos>", "<s>", "<unk>", "<user>", "<bot>"]
WORDS = ["the", "a", "cat", "dog", "mat", "sat", "saw", "ran", "on", "big", "red", "."]
SIZE = len(MARKS) + len(WORDS)
COLUMNS = SIZE + 4  # of the logits
TEMPLATE = (
    "{% for turn in messages %}<user> {{ turn['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)


def save_language_model(folder, *, eos="<eos>", template=TEMPLATE):
    """A tiny Llama of words with random weights; it has some columns more than there are tokens."""
    transformers = pytest.importorskip("transformers")
    vocabulary = {word: id for id, word in enumerate([*MARKS, *WORDS])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model,
        eos_token=eos,
        bos_token="<s>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<bot>"],
    )
    made.chat_template = template
    made.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=COLUMNS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=0,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder
