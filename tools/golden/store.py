"""Reads a store (format 1) in numpy, independently of the Rust engine. A library, no command.

`load` gives config and float32 tensors under the official names without prefix and with zero-centred norms (the store
has 1 + w). Checksums are not looked at: `cherenkov check` does that. Encodings as the manifest writes them:
{"kind": "f32"}, {"kind": "bf16"}, {"kind": "tile16", "bits", "group"} for matrices, {"kind": "affine", "bits"} for
n-gram rows (group 32). Every value is code * scale + bias, the product exact, the sum rounded once to float32.
"""
import json
import os

import numpy as np

FORMAT = ("cherenkov-store", 1)
TILE_ROWS, HEADER, PAGE, ALIGN, ROW_GROUP = 16, 64, 4096, 64, 32


def round_up(n, step):
    return -(-n // step) * step


def bf16(a):
    return (np.ascontiguousarray(a).view("<u2").astype(np.uint32) << 16).view(np.float32)


def byte_len(rows, cols, encoding):
    if encoding["kind"] == "tile16":
        block = HEADER + TILE_ROWS * encoding["group"] * encoding["bits"] // 8
        return -(-rows // TILE_ROWS) * (cols // encoding["group"]) * block
    return rows * cols * {"f32": 4, "bf16": 2}[encoding["kind"]]


def matrix(raw, rows, cols, encoding):
    """[rows, cols] float32 of a matrix's bytes (a uint8 array)."""
    if encoding["kind"] == "f32":
        return raw.view("<f4").reshape(rows, cols)
    if encoding["kind"] == "bf16":
        return bf16(raw).reshape(rows, cols)
    bits, group = encoding["bits"], encoding["group"]
    tiles, groups = -(-rows // TILE_ROWS), cols // group
    blocks = raw.reshape(tiles * groups, -1)
    scales, biases = bf16(blocks[:, :32]), bf16(blocks[:, 32:HEADER])
    words = blocks[:, HEADER:].reshape(len(blocks), -1, TILE_ROWS, 4)
    codes = quads(words, bits, group // 4).transpose(0, 2, 1, 3).reshape(len(blocks), TILE_ROWS, group)
    values = codes.astype(np.float32) * scales[:, :, None] + biases[:, :, None]
    return values.reshape(tiles, groups, TILE_ROWS, group).transpose(0, 2, 1, 3).reshape(-1, cols)[:rows]


def quads(words, bits, count):
    """[block, quad, row, 4] codes of [block, word, row, 4] bytes."""
    if bits == 8:
        return words
    low = 2 if bits == 3 else bits
    per = 8 // low
    out = np.stack([words[:, q // per] >> (low * (q % per)) & (1 << low) - 1 for q in range(count)], axis=1)
    if bits == 3:
        high = words[:, count // 4:]
        out |= np.stack([(high[:, q // 8] >> (q % 8) & 1) << 2 for q in range(count)], axis=1)
    return out


def table(raw, rows, width, encoding):
    """[rows, width] float32 of an n-gram table whose rows lie one after another."""
    if encoding["kind"] != "affine":
        return matrix(raw, rows, width, encoding)
    bits, groups = encoding["bits"], width // ROW_GROUP
    raw = raw.reshape(rows, -1)
    packed, scales, biases = np.split(raw, [width * bits // 8, width * bits // 8 + 2 * groups], axis=1)
    string = np.unpackbits(packed, axis=1, bitorder="little").reshape(rows, width, bits)
    codes = (string << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
    values = codes.reshape(rows, groups, ROW_GROUP).astype(np.float32) * bf16(scales)[:, :, None] + bf16(biases)[:, :, None]
    return values.reshape(rows, width)


def expert(record, hidden, width, inner, outer):
    """gate_up [2 * width, hidden] and down [hidden, width] of one record."""
    size, step = byte_len(width, hidden, inner), round_up(byte_len(width, hidden, inner), ALIGN)
    gate, up = (matrix(record[at:at + size], width, hidden, inner) for at in (0, step))
    down = record[2 * step:2 * step + byte_len(hidden, width, outer)]
    return np.concatenate([gate, up]), matrix(down, hidden, width, outer)


# ---- a whole store ----

def official_name(name):
    return name if name.endswith(("A_log", "dt_bias")) else name + ".weight"


def in_official_shape(name, values):
    """The matrix of a dense tensor as the checkpoint has it: vectors flat, convolutions [channels, 1, taps]."""
    last = name.split(".")[-1]
    if last == "conv1d":
        return values[:, None]
    if last in ("A_log", "dt_bias", "norm"):
        return values[0]
    return values[0] - np.float32(1) if "norm" in last else values


def dense_tensors(section, folder):
    raw = np.fromfile(os.path.join(folder, section["file"]), np.uint8)
    out = {}
    for t in section["tensors"]:
        part = raw[t["offset"]:t["offset"] + byte_len(t["rows"], t["cols"], t["encoding"])]
        out[official_name(t["name"])] = in_official_shape(t["name"], matrix(part, t["rows"], t["cols"], t["encoding"]))
    return out


def expert_tensors(section, folder, trunk_layers):
    records = np.fromfile(os.path.join(folder, section["file"]), np.uint8).reshape(
        section["layers"], section["per_layer"], section["record_bytes"])
    out = {}
    for i, layer in enumerate(records):
        at = f"layers.{i}." if i < trunk_layers else f"mtp.layers.{i - trunk_layers}."
        parts = [expert(record, **section["layout"]) for record in layer]
        out[at + "mlp.experts.gate_up_proj"] = np.stack([p[0] for p in parts])
        out[at + "mlp.experts.down_proj"] = np.stack([p[1] for p in parts])
    return out


def ngram_tensors(manifest, folder):
    out = {}
    ple = manifest["config"]["ple"]
    for layer, n, constants in zip(ple["layers"] if ple else [], manifest["ngram"], manifest["hash_tables"], strict=True):
        at = f"layers.{layer}.ple.ple_embedding."
        raw = np.fromfile(os.path.join(folder, n["file"]), np.uint8)
        out[at + "ngram_embedding.weight"] = table(raw, n["rows"], n["width"], n["encoding"])
        for name, field in (("layer_multipliers", "multipliers"), ("ngram_heads_vocab_sizes", "sizes"),
                            ("ngram_heads_offsets", "offsets")):
            out[at + name] = np.array(constants[field], np.int64)
    return out


def official_config(c):
    """The store's configuration in the words of config.json (flat)."""
    a, d, m, h, p = (c[k] for k in ("attention", "delta", "moe", "hyper", "ple"))
    mixers = {"delta": "linear_attention", "attention": "full_attention"}
    assert not c["mtp"] or c["mtp"]["hidden_norm"] == "global", "only the global hidden norm is written in numpy"
    out = dict(
        model_type="qwen4_exp_text", hidden_size=c["hidden"], vocab_size=c["vocab"], rms_norm_eps=c["eps"],
        num_hidden_layers=len(c["layers"]), max_position_embeddings=c["max_positions"], hidden_act="silu",
        tie_word_embeddings=c["tied_embeddings"], layer_types=[mixers[k] for k in c["layers"]],
        num_attention_heads=a["heads"], num_key_value_heads=a["kv_heads"], head_dim=a["head_dim"],
        rope_parameters=dict(rope_type="default", rope_theta=a["rope_theta"], mrope_section=a["mrope_section"],
                             partial_rotary_factor=a["rope_dims"] / a["head_dim"], mrope_interleaved=True),
        indexer_n_heads=a["index_heads"], indexer_kv_heads=1, indexer_head_dim=a["index_dim"],
        indexer_budget=a["index_budget"], indexer_compress_ratio=a["index_ratio"],
        linear_num_key_heads=d["key_heads"], linear_num_value_heads=d["value_heads"], linear_key_head_dim=d["key_dim"],
        linear_value_head_dim=d["value_dim"], linear_conv_kernel_dim=d["conv_kernel"], output_gate_type=d["gate"],
        num_experts=m["experts"], num_experts_per_tok=m["top_k"], moe_intermediate_size=m["width"],
        shared_expert_intermediate_size=m["shared_width"], norm_topk_prob=m["norm_topk"],
        hc_count=h["count"], hc_lowrank=h["rank"], mtp_num_hidden_layers=int(c["mtp"] is not None),
        eos_token_id=[c["eos_hash"]] + [e for e in c["eos_stop"] if e != c["eos_hash"]])
    if p:
        out |= dict(ple_layer_ids=[i + 1 for i in p["layers"]], ple_embed_dim=p["embed_dim"],
                    ple_conv_kernel_size=p["conv_kernel"], ngram_size=p["ngram"], heads_per_ngram=p["heads_per_ngram"],
                    ngram_vocab_size_base=p["vocab_base"], make_ngram_vocab_size_divisible_by=p["divisor"], seed=p["seed"])
    return out


def load(folder):
    with open(os.path.join(folder, "manifest.json")) as f:
        manifest = json.load(f)
    assert (manifest["format"], manifest["version"]) == FORMAT, (manifest["format"], manifest["version"])
    config = official_config(manifest["config"])
    tensors = dense_tensors(manifest["dense"], folder) | ngram_tensors(manifest, folder)
    return config, tensors | expert_tensors(manifest["experts"], folder, config["num_hidden_layers"])
