"""Make a tiny seeded Qwen3 checkpoint with a tokenizer of 512 tokens; run with the interpreter that has vLLM."""

from __future__ import annotations

import random
import sys

#: What its tokenizer was trained on; prompts are made of these.
WORDS = [
    "the",
    "a",
    "of",
    "model",
    "node",
    "layer",
    "token",
    "server",
    "plan",
    "cost",
    "region",
    "request",
    "answer",
    "fast",
    "slow",
]


def main(folder: str) -> None:
    """8 layers, hidden 256, seeded weights wide enough that greedy answers vary."""
    # Here, so that tests without torch can read WORDS.
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    draw = random.Random(0)
    lines = [" ".join(draw.choice(WORDS) for _ in range(12)) for _ in range(500)]
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(lines, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    fast.chat_template = "{% for m in messages %}{{m['role']}}: {{m['content']}}\n{% endfor %}assistant:"
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.2,
        eos_token_id=0,
        bos_token_id=0,
        tie_word_embeddings=False,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
