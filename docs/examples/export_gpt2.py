"""A GPT-2 with a cache of keys and values becomes an ONNX file."""

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

# Small, and with random weights. For GPT-2 itself: GPT2LMHeadModel.from_pretrained("gpt2")
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=1000)).eval()
layers, heads, width = model.config.n_layer, model.config.n_head, model.config.n_embd // model.config.n_head


class WithCache(torch.nn.Module):
    """Takes and gives the cache as one tensor for the keys and one for the values of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = DynamicCache()
        for layer in range(layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        given = {"attention_mask": attention_mask, "position_ids": position_ids, "past_key_values": cache}
        out = self.model(input_ids=input_ids, use_cache=True, **given)
        return out.logits, *(tensor for one in out.past_key_values.layers for tensor in (one.keys, one.values))


batch, seq, past = 2, 5, 7
caches = [torch.zeros(batch, heads, past, width) for _ in range(2 * layers)]
ids = torch.zeros(batch, seq, dtype=torch.int64)
names = [f"{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
torch.onnx.export(
    WithCache().eval(),
    (ids, torch.ones(batch, past + seq, dtype=torch.int64), ids, *caches),
    "decoder.onnx",
    input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in names)],
    output_names=["logits", *(f"present.{name}" for name in names)],
    dynamic_shapes=(
        {0: "batch", 1: "seq"},
        {0: "batch", 1: "total"},
        {0: "batch", 1: "seq"},
        tuple({0: "batch", 2: "past"} for _ in caches),
    ),
    dynamo=True,
    external_data=False,
)
