"""Reads the numbers of our store format in numpy, independently of the Rust engine. A library, no command.

Encodings as the store's manifest writes them: {"kind": "f32"}, {"kind": "bf16"}, {"kind": "tile16", "bits", "group"} for
matrices, {"kind": "affine", "bits"} for n-gram rows (group 32). Every value is code * scale + bias, the product exact
and the sum rounded once to float32.
"""
import numpy as np

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
