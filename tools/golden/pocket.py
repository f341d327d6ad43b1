"""Golden values of the bundled pocket store: transformers and numpy on exactly its dequantised weights.

    VENV/bin/python tools/golden/pocket.py STORE_DIR fixtures/pocket

Versions: requirements.txt. Reads OUT/prompts.json; writes OUT/golden.safetensors and OUT/golden.json. Tensors as in
README.md; `mtp_logits` holds only the last rows (`mtp_first_row` in golden.json), `stream` only the prompt `story`.
"""
import json
import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file

import mtp_numpy
import reference
import store
from random_fixtures import CHAINED, MAGIC, VERSION, versions, write_json

GREEDY, MTP_ROWS, MTP_ROWS_SELECTING = 64, 24, 8
STREAMS, GREEDY_ONLY = ("story",), ("long",)
MAX_NUMPY_ERROR = 5e-5


def forward(model, w, cfg, name, ids):
    """Tensors and facts of one prompt."""
    r = reference.run(model, ids)
    logits, streams, decisions = mtp_numpy.trunk(w, ids, cfg)
    info = dict(numpy_error=mtp_numpy.relative(logits, r["logits"].numpy()),
                router_differences=int((r["router"].numpy() != np.array([d["experts"] for d in decisions])).sum()),
                router_margin=float(r["router_margin"].min()), zero_ties=r["zero_ties"])
    tensors = {k: r[k] for k in ("logits", "router", "router_margin")}
    if name in STREAMS:
        tensors["stream"] = r["stream"]
    rows = min(len(ids), MTP_ROWS)
    if len(ids) > cfg["indexer_budget"]:
        rows = MTP_ROWS_SELECTING
        for i, mask in r["qsa_mask"].items():
            assert (mask.numpy() == decisions[i]["mask"]).all(), f"{name}: selection of layer {i}"
            tensors[f"qsa_mask.{i}"], tensors[f"qsa_margin.{i}"] = mask, r["qsa_margin"][i]
        info["selection_margin"] = float(min(m.min() for m in r["qsa_margin"].values()))
    bonus = int(r["logits"][-1].argmax())
    first, chained, drafts, margins = mtp_numpy.mtp_chain(w, streams[-1], ids, bonus, CHAINED, cfg)
    tensors["mtp_logits"] = torch.from_numpy(first[-rows:].astype(np.float32))
    tensors["mtp_chain_logits"] = torch.from_numpy(chained.astype(np.float32))
    info |= dict(bonus_token=bonus, chain_drafts=drafts, mtp_first_row=len(ids) - rows, mtp_router_margin=margins[0])
    assert info["numpy_error"] < MAX_NUMPY_ERROR, (name, info)
    return {f"{name}.{k}": v.contiguous() for k, v in tensors.items()}, info


def main(store_dir, out):
    config, weights = store.load(store_dir)
    model = reference.from_tensors(config, weights)
    cfg, w = mtp_numpy.read_config(config), mtp_numpy.strip_prefixes(weights)
    with open(os.path.join(out, "prompts.json")) as f:
        prompts = json.load(f)
    tensors, infos = {}, []
    for p in prompts:
        more, info = ({}, {}) if p["name"] in GREEDY_ONLY else forward(model, w, cfg, p["name"], p["input_ids"])
        greedy, margins = reference.greedy(model, p["input_ids"], GREEDY)
        tensors |= more
        infos.append(p | info | dict(greedy=greedy, greedy_margin=min(margins)))
        print({k: v for k, v in infos[-1].items() if k not in ("text", "input_ids", "greedy")}, flush=True)
    save_file(tensors, os.path.join(out, "golden.safetensors"), metadata={MAGIC: str(VERSION)})
    write_json(os.path.join(out, "golden.json"), dict(
        magic=MAGIC, version=VERSION, covers="the bundled pocket store, dequantised to float32",
        regenerate="python tools/golden/pocket.py STORE_DIR fixtures/pocket", made_with=versions(), prompts=infos))


if __name__ == "__main__":
    main(*sys.argv[1:3])
