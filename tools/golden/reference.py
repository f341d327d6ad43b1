"""Runs transformers' qwen4_exp in float32 on the CPU and records what the golden files hold. A library, no command.

use_cache=False, eager attention, experts one by one. The reference breaks ties between QSA blocks arbitrarily; here
torch.Tensor.topk (which only the indexer uses) is replaced by a stable sort: the lowest block first. The patched
function also hands out the block scores, from which the selection margins come.
"""
import contextlib
import os

import torch
from transformers.models.qwen4_exp import Qwen4ExpForCausalLM, Qwen4ExpTextConfig
from transformers.utils import logging

torch.set_num_threads(int(os.environ.get("GOLDEN_THREADS", "2")))
logging.set_verbosity_error()
logging.disable_progress_bar()
OPTIONS = dict(dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")


def load(folder):
    """The text model of a checkpoint folder; every tensor but vision and MTP must be used, none may be missing."""
    model, info = Qwen4ExpForCausalLM.from_pretrained(folder, output_loading_info=True, **OPTIONS)
    problems = {k: v for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    assert not problems, problems
    return model.eval()


def from_tensors(text_config, tensors):
    """The text model with exactly these float32 tensors, named as in the official checkpoint without prefix."""
    model = Qwen4ExpForCausalLM._from_config(Qwen4ExpTextConfig(**text_config), **OPTIONS)
    own = {k if k.startswith("lm_head") else "model." + k: torch.tensor(v) for k, v in tensors.items()
           if not k.startswith("mtp.")}
    model.load_state_dict(own, strict=True)
    return model.eval()


@contextlib.contextmanager
def lowest_block_first(calls):
    """Makes Tensor.topk stable and appends (scores, k) of every call to the last list of `calls`."""
    def topk(scores, k, dim):
        order = scores.sort(dim=dim, descending=True, stable=True)
        calls[-1].append((scores.clone(), k))
        return torch.return_types.topk((order.values[:k], order.indices[:k]))
    torch.Tensor.topk = topk
    try:
        yield
    finally:
        del torch.Tensor.topk


def is_full(layer):
    return layer.layer_type != "linear_attention"


@contextlib.contextmanager
def recorded(model, seen):
    layers = model.model.layers
    hooks = [layer.mlp.gate.register_forward_hook(lambda m, i, o: seen["router"].append((o[0], o[2]))) for layer in layers]
    full = [layer.self_attn.indexer for layer in layers if is_full(layer)]
    hooks += [m.register_forward_pre_hook(lambda m, i: seen["calls"].append([])) for m in full]
    hooks += [m.register_forward_hook(lambda m, i, o: seen["masks"].append(o[0, 0])) for m in full]
    hooks += [layers[0].register_forward_pre_hook(lambda m, i: seen["streams"].append(i[0][0].clone()))]
    hooks += [layer.register_forward_hook(lambda m, i, o: seen["streams"].append(o[0].clone())) for layer in layers]
    with lowest_block_first(seen["calls"]):
        yield
    for hook in hooks:
        hook.remove()


def block_margins(calls, tokens):
    """Per query the gap between the last chosen and the first dropped block score (inf: nothing dropped), and the
    number of queries where that gap is a tie of zeros."""
    margins, ties = torch.full((tokens,), torch.inf), 0
    for query, (scores, k) in zip(range(tokens - len(calls), tokens), calls):
        if k < len(scores):
            ranked = scores.sort(descending=True).values
            margins[query] = ranked[k - 1] - ranked[k]
            ties += bool(ranked[k - 1] == 0)
    return margins, ties


@torch.no_grad()
def run(model, ids):
    """Logits, router, streams, masks and margins of one prompt; tensors as MODEL.md's golden files name them."""
    seen = dict(router=[], calls=[], masks=[], streams=[])
    with recorded(model, seen):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    router_margin = []
    for router_logits, chosen in seen["router"]:
        ranked = router_logits.softmax(-1).sort(descending=True).values
        router_margin.append(ranked[:, chosen.shape[-1] - 1] - ranked[:, chosen.shape[-1]])
    full = [i for i, layer in enumerate(model.model.layers) if is_full(layer)]
    blocks = [block_margins(c, len(ids)) for c in seen["calls"]]
    return dict(
        logits=logits,
        router=torch.stack([chosen for _, chosen in seen["router"]]).to(torch.int32),
        router_margin=torch.stack(router_margin),
        stream=torch.stack(seen["streams"]),
        qsa_mask={i: (m & causal).to(torch.uint8) for i, m in zip(full, seen["masks"])},
        qsa_margin={i: m for i, (m, _) in zip(full, blocks)},
        zero_ties=sum(t for _, t in blocks),
    )


@torch.no_grad()
def greedy(model, ids, count):
    """`count` ids by argmax (fewer when the config's eos comes), with the cache, and the logit gap of every choice."""
    with lowest_block_first([[]]):
        out = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, return_dict_in_generate=True,
                             output_logits=True, pad_token_id=0)
    top = torch.stack(out.logits)[:, 0].topk(2).values
    return out.sequences[0, len(ids):].tolist(), (top[:, 0] - top[:, 1]).tolist()
