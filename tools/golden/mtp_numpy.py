"""The whole qwen4_exp text model and its MTP draft head in plain numpy, float64, written from the model description.

Independent of transformers and of the Rust engine. transformers has no MTP head, so this program makes the MTP golden
values; that its trunk agrees with transformers is checked each time golden values are made. Slow and simple on
purpose: whole sequences, no caches, one loop per token where a token depends on the one before it.

    python mtp_numpy.py fixtures/random/base     # compares trunk logits, router, masks and MTP with the golden file

Weights are a dict of float64 arrays named as in the official checkpoint without `model.language_model.` / `model.`;
int64 hash tables stay int64.
"""
import json
import os
import struct
import sys

import numpy as np

PREFIXES = ("model.language_model.", "model.")
MASK64 = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


# ---- reading a checkpoint ----

def read_safetensors(path):
    """name -> numpy array; bf16 becomes float32."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, body = json.loads(f.read(size)), f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = body[t["data_offsets"][0]:t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            a = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(raw, {"F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1"}[t["dtype"]])
        out[name] = a.reshape(t["shape"])
    return out


def strip_prefixes(tensors):
    """Official names without prefix, floats as float64, n-gram shards joined in order of their number."""
    out, shards = {}, {}
    for name, a in tensors.items():
        for p in PREFIXES:
            if name.startswith(p):
                name = name[len(p):]
                break
        a = a.astype(np.float64) if a.dtype.kind == "f" else a
        if ".shard_" in name:
            base, k = name.removesuffix(".weight").split(".shard_")
            shards.setdefault(base + ".weight", {})[int(k)] = a
        else:
            out[name] = a
    out.update({base: np.concatenate([parts[k] for k in sorted(parts)]) for base, parts in shards.items()})
    return out


def read_config(config):
    """The text model's settings with the defaults that this family has."""
    c = dict(config.get("text_config", config))
    if c.get("layer_types") is None:
        n = c.get("full_attention_interval", 4)
        c["layer_types"] = ["linear_attention" if (i + 1) % n else "full_attention" for i in range(c["num_hidden_layers"])]
    rope = c["rope_parameters"]
    factor = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))
    c["rot"], c["theta"] = int(c["head_dim"] * factor), rope["rope_theta"]
    c["ple_layer_ids"] = sorted(set(c.get("ple_layer_ids") or []))
    c["ple_embed_dim"] = c.get("ple_embed_dim") or c["hidden_size"]
    eos = c["eos_token_id"]
    c["eos"] = eos[0] if isinstance(eos, list) else eos
    c["gate_type"] = c.get("output_gate_type") or c["hidden_act"]
    c["tied"] = config.get("tie_word_embeddings", c.get("tie_word_embeddings", False))
    return c


def load(folder):
    with open(os.path.join(folder, "config.json")) as f:
        cfg = read_config(json.load(f))
    return cfg, strip_prefixes(read_safetensors(os.path.join(folder, "model.safetensors")))


def sub(w, prefix):
    return {k[len(prefix):]: v for k, v in w.items() if k.startswith(prefix)}


# ---- pieces ----

def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x):
    return x * sigmoid(x)


def unit_rms(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def norm(x, w, eps):
    return unit_rms(x, eps) * (1 + w)


def grouped_norm(x, w, cfg):
    streams = x.reshape(len(x), -1, cfg["hidden_size"])
    return unit_rms(streams, cfg["rms_norm_eps"]).reshape(x.shape) * (1 + w)


def causal_conv(x, w, dilation):
    """x [tokens, channels], w [channels, 1, K], last tap on the current row."""
    taps = w.shape[-1]
    y = np.zeros_like(x)
    for j in range(taps):
        back = (taps - 1 - j) * dilation
        if back < len(x):
            y[back:] += w[:, 0, j] * x[:len(x) - back]
    return y


def rope(x, positions, cfg):
    """x [tokens, ..., dim]: rotates the first rot dimensions, i pairs with i + rot/2."""
    half = cfg["rot"] // 2
    angle = np.asarray(positions, float)[:, None] * cfg["theta"] ** (-2 * np.arange(half) / cfg["rot"])
    shape = (len(x),) + (1,) * (x.ndim - 2) + (half,)
    cos, sin = np.cos(angle).reshape(shape), np.sin(angle).reshape(shape)
    a, b = x[..., :half], x[..., half:2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]], axis=-1)


def best(values, k):
    """Indices of the k largest, falling; ties go to the lowest index. And the gap to the first one left out."""
    order = np.argsort(-values, kind="stable")
    gap = values[order[k - 1]] - values[order[k]] if k < len(values) else np.inf
    return order[:k], gap


def hyper_read(w, streams, cfg):
    count = cfg["hc_count"]
    n = grouped_norm(streams, w["hc_norm.weight"], cfg)
    g = sigmoid(silu(n @ w["input_mix_weight_down.weight"].T / count) @ w["input_mix_weight_up.weight"].T)
    u = (g * n).reshape(len(n), count, -1).mean(axis=1)
    if "block_inject_weight.weight" not in w:
        return u
    return u, 2 * sigmoid(n @ w["block_inject_weight.weight"].T / count)


def hyper_write(streams, s, y):
    return streams + (s[:, :, None] * y[:, None, :]).reshape(streams.shape)


# ---- mixers ----

def delta_net(w, u, cfg):
    heads_k, heads_v = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"]
    dim_k, dim_v = cfg["linear_key_head_dim"], cfg["linear_value_head_dim"]
    tokens, keys = len(u), heads_k * dim_k
    qkv = silu(causal_conv(u @ w["in_proj_qkv.weight"].T, w["conv1d.weight"], 1))
    q = qkv[:, :keys].reshape(tokens, heads_k, dim_k)
    k = qkv[:, keys:2 * keys].reshape(tokens, heads_k, dim_k)
    v = qkv[:, 2 * keys:].reshape(tokens, heads_v, dim_v)
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) * dim_k ** -0.5
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    z = (u @ w["in_proj_z.weight"].T).reshape(tokens, heads_v, dim_v)
    beta = sigmoid(u @ w["in_proj_b.weight"].T)
    decay = np.exp(-np.exp(w["A_log"]) * np.logaddexp(0, u @ w["in_proj_a.weight"].T + w["dt_bias"]))
    y = np.zeros((tokens, heads_v, dim_v))
    for j in range(heads_v):
        kj = j // (heads_v // heads_k)
        state = np.zeros((dim_k, dim_v))
        for t in range(tokens):
            state *= decay[t, j]
            state += np.outer(k[t, kj], beta[t, j] * (v[t, j] - state.T @ k[t, kj]))
            y[t, j] = state.T @ q[t, kj]
    act = {"sigmoid": sigmoid, "silu": silu}[cfg["gate_type"]]
    y = unit_rms(y, cfg["rms_norm_eps"]) * w["norm.weight"] * act(z)
    return y.reshape(tokens, -1) @ w["out_proj.weight"].T


def qsa_select(w, u, cfg):
    """[query, key] bool, and per query the gap between the last chosen and the first dropped block."""
    tokens, dim, ratio, eps = len(u), cfg["indexer_head_dim"], cfg["indexer_compress_ratio"], cfg["rms_norm_eps"]
    budget = cfg["indexer_budget"] // ratio
    qk = (u @ w["index_qk_proj.weight"].T).reshape(tokens, -1, dim)
    q = rope(norm(qk[:, :-1], w["q_layernorm.weight"], eps), np.arange(tokens), cfg)
    complete = tokens // ratio
    pooled = qk[:complete * ratio, -1].reshape(complete, ratio, dim).mean(axis=1)
    keys = rope(norm(pooled, w["k_layernorm.weight"], eps), np.arange(complete) * ratio, cfg)
    mask, margin = np.zeros((tokens, tokens), bool), np.full(tokens, np.inf)
    for p in range(tokens):
        blocks = (p + 1) // ratio
        mask[p, blocks * ratio:p + 1] = True
        if blocks:
            scores = np.maximum(q[p] @ keys[:blocks].T, 0).sum(axis=0) / np.sqrt(dim)
            chosen, margin[p] = best(scores, min(budget, blocks))
            for b in chosen:
                mask[p, b * ratio:(b + 1) * ratio] = True
    return mask, margin


def qsa_attention(w, u, cfg):
    heads, heads_kv, dim, eps = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"], cfg["rms_norm_eps"]
    tokens = len(u)
    qg = (u @ w["q_proj.weight"].T).reshape(tokens, heads, 2 * dim)
    k = (u @ w["k_proj.weight"].T).reshape(tokens, heads_kv, dim)
    v = (u @ w["v_proj.weight"].T).reshape(tokens, heads_kv, dim)
    q = rope(norm(qg[..., :dim], w["q_norm.weight"], eps), np.arange(tokens), cfg)
    k = rope(norm(k, w["k_norm.weight"], eps), np.arange(tokens), cfg)
    mask, margin = qsa_select(sub(w, "indexer."), u, cfg)
    out = np.zeros((tokens, heads, dim))
    for j in range(heads):
        kv = j // (heads // heads_kv)
        scores = np.where(mask, q[:, j] @ k[:, kv].T * dim ** -0.5, -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, j] = p / p.sum(axis=-1, keepdims=True) @ v[:, kv]
    out *= sigmoid(qg[..., dim:])
    return out.reshape(tokens, -1) @ w["o_proj.weight"].T, mask, margin


# ---- experts ----

def mlp(gate, up, down, x):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def moe(w, u, cfg):
    """Output, chosen experts [tokens, k] by falling probability, margin [tokens]."""
    width = cfg["moe_intermediate_size"]
    logits = u @ w["gate.weight"].T
    probs = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    y = sigmoid(u @ w["shared_expert_gate.weight"].T) * mlp(
        *(w[f"shared_expert.{n}_proj.weight"] for n in ("gate", "up", "down")), u)
    experts, margin = [], []
    for t in range(len(u)):
        chosen, gap = best(probs[t], cfg["num_experts_per_tok"])
        share = probs[t, chosen] / (probs[t, chosen].sum() if cfg["norm_topk_prob"] else 1)
        for e, s in zip(chosen, share):
            gate_up = w["experts.gate_up_proj"][e]
            y[t] += s * mlp(gate_up[:width], gate_up[width:], w["experts.down_proj"][e], u[t])
        experts.append(chosen)
        margin.append(gap)
    return y, np.array(experts), np.array(margin)


# ---- n-gram embedding ----

def splitmix64(v):
    v = (v + GAMMA) & MASK64
    v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & MASK64
    return v ^ (v >> 31)


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))


def hash_constants(cfg, index):
    """Multipliers, sizes and offsets of the index-th PLE layer, by the formula."""
    heads = (cfg["ngram_size"] - 1) * cfg["heads_per_ngram"]
    half = max(1, ((1 << 63) - 1) // cfg["vocab_size"] // 2)
    multipliers = [2 * (splitmix64((cfg["seed"] + 10007 * index + GAMMA * (i + 1)) & MASK64) % half) + 1
                   for i in range(cfg["ngram_size"])]
    primes, n = [], cfg["ngram_vocab_size_base"]
    while len(primes) < (index + 1) * heads:
        if is_prime(n):
            primes.append(n)
        n += 1
    sizes = primes[index * heads:]
    return multipliers, sizes, [sum(sizes[:j]) for j in range(heads)]


def ngram_rows(ids, constants, cfg):
    """Table rows [tokens, heads] of a sequence that starts with ids[0]."""
    multipliers, sizes, offsets = constants
    per = cfg["heads_per_ngram"]
    rows = []
    for p in range(len(ids)):
        mix, crossed, row = ids[p] * multipliers[0], False, []
        for back in range(1, cfg["ngram_size"]):
            crossed = crossed or p - back < 0 or ids[p - back] == cfg["eos"]
            mix ^= (cfg["eos"] if crossed else ids[p - back]) * multipliers[back]
            heads = range((back - 1) * per, back * per)
            row += [mix % sizes[j] + offsets[j] for j in heads]
        rows.append(row)
    return np.array(rows)


def ple(w, streams, ids, index, cfg):
    constants = hash_constants(cfg, index)
    stored = [[int(v) for v in w["ple_embedding." + n]]
              for n in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")]
    assert [list(c) for c in constants] == stored, "stored hash constants differ from the formula"
    hidden, count = cfg["hidden_size"], cfg["hc_count"]
    e = w["ple_embedding.ngram_embedding.weight"][ngram_rows(ids, constants, cfg)].reshape(len(ids), -1)
    key = grouped_norm(e @ w["key_proj.weight"].T, w["norm_key.weight"], cfg).reshape(-1, count, hidden)
    query = grouped_norm(streams, w["norm_query.weight"], cfg).reshape(-1, count, hidden)
    a = (key * query).sum(axis=-1, keepdims=True) / np.sqrt(hidden)
    a = np.sign(a) * np.sqrt(np.maximum(np.abs(a), 1e-6))
    gated = (sigmoid(a) * (e @ w["value_proj.weight"].T)[:, None]).reshape(streams.shape)
    return gated + silu(causal_conv(grouped_norm(gated, w["norm_conv.weight"], cfg), w["conv1d.weight"], cfg["ngram_size"]))


# ---- the model ----

def layer(w, streams, kind, cfg):
    """One decoder layer without PLE. Returns the streams and what was decided on the way."""
    seen = {}
    u, s = hyper_read(sub(w, "attn_hyper_connection."), streams, cfg)
    if kind == "linear_attention":
        y = delta_net(sub(w, "linear_attn."), u, cfg)
    else:
        y, seen["mask"], seen["mask_margin"] = qsa_attention(sub(w, "self_attn."), u, cfg)
    streams = hyper_write(streams, s, y)
    u, s = hyper_read(sub(w, "mlp_hyper_connection."), streams, cfg)
    y, seen["experts"], seen["router_margin"] = moe(sub(w, "mlp."), u, cfg)
    return hyper_write(streams, s, y), seen


def head(w, mixer, streams, cfg):
    u = hyper_read(sub(w, mixer), streams, cfg)
    return u @ (w["embed_tokens.weight"] if cfg["tied"] else w["lm_head.weight"]).T


def trunk(w, ids, cfg):
    """Logits [tokens, vocab], streams [layers + 1, tokens, C*h] (0: the embedding repeated), decisions per layer."""
    streams = [np.tile(w["embed_tokens.weight"][ids], cfg["hc_count"])]
    decisions = []
    for i, kind in enumerate(cfg["layer_types"]):
        wl, h = sub(w, f"layers.{i}."), streams[-1]
        if i + 1 in cfg["ple_layer_ids"]:
            h = h + ple(sub(wl, "ple."), h, ids, cfg["ple_layer_ids"].index(i + 1), cfg)
        h, seen = layer(wl, h, kind, cfg)
        streams.append(h)
        decisions.append(seen)
    return head(w, "hyper_connection_mixer.", streams[-1], cfg), np.array(streams), decisions


def mtp(w, hidden, next_ids, cfg):
    """Row p: hidden H_p and the id at p+1. Returns logits, the head's own streams, decisions."""
    wm, eps = sub(w, "mtp."), cfg["rms_norm_eps"]
    f = norm(w["embed_tokens.weight"][next_ids], wm["pre_fc_norm_embedding.weight"], eps) @ wm["fc_embedding.weight"].T
    n = norm(hidden, wm["pre_fc_norm_hidden.weight"], eps).reshape(len(hidden), cfg["hc_count"], -1)
    streams = (f[:, None] + n @ wm["fc_hidden.weight"].T).reshape(hidden.shape)
    streams, seen = layer(sub(wm, "layers.0."), streams, "full_attention", cfg)
    return head(w, "mtp.hyper_connection_mixer.", streams, cfg), streams, seen


def mtp_chain(w, hidden, ids, bonus, count, cfg):
    """MTP logits over the prompt (the last row takes the bonus token), then count chained drafts.

    Returns (logits [tokens, vocab], chained logits [count, vocab], draft ids [count + 1], smallest router and
    selection margins).
    """
    next_ids = list(ids[1:]) + [bonus]
    drafts, chained = [], []
    for step in range(count + 1):
        logits, own, seen = mtp(w, hidden, next_ids, cfg)
        if step == 0:
            first = logits
        else:
            chained.append(logits[-1])
        drafts.append(int(logits[-1].argmax()))
        hidden, next_ids = np.concatenate([hidden, own[-1:]]), next_ids + [drafts[-1]]
    return first, np.array(chained), drafts, (float(seen["router_margin"].min()), float(seen["mask_margin"].min()))


def relative(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def compare(folder):
    cfg, w = load(folder)
    golden = read_safetensors(os.path.join(folder, "golden", "golden.safetensors"))
    with open(os.path.join(folder, "golden", "golden.json")) as f:
        prompts = json.load(f)["prompts"]
    for p in prompts:
        name, ids = p["name"], p["input_ids"]
        logits, streams, decisions = trunk(w, ids, cfg)
        line = [f"logits {relative(logits, golden[name + '.logits']):.1e}"]
        line.append(f"router differs {int((golden[name + '.router'] != np.array([d['experts'] for d in decisions])).sum())}")
        for i, d in enumerate(decisions):
            if f"{name}.qsa_mask.{i}" in golden:
                line.append(f"mask.{i} differs {int((golden[f'{name}.qsa_mask.{i}'] != d['mask']).sum())}")
        if "bonus_token" in p:
            first, chained, _, _ = mtp_chain(w, streams[-1], ids, p["bonus_token"], len(p["chain_drafts"]) - 1, cfg)
            line.append(f"mtp {relative(first, golden[name + '.mtp_logits']):.1e}")
            line.append(f"chain {relative(chained, golden[name + '.mtp_chain_logits']):.1e}")
        print(f"{name:12}", "; ".join(line))


if __name__ == "__main__":
    compare(sys.argv[1])
