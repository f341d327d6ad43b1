"""Renders the conversations with transformers and writes what the Rust tests compare with.

    pip install -r requirements.txt && python make.py

Writes conversations, strings, ways and numbers (.json) into crates/text/tests/fixtures, from the tokenizer and templates there.
"""

import json
import random
import struct
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerFast

from transformers.utils.chat_template_utils import _compile_jinja_template

from conversations import CASES
from ways import WAYS

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = ROOT / "crates" / "text" / "tests" / "fixtures"
TEMPLATES = {"pocket": "chat_template.jinja", "official_style": "official_style.jinja"}


def render_all(tokenizer):
    out = []
    for label, file in TEMPLATES.items():
        template = (FIXTURES / file).read_text(encoding="utf-8")
        for name, messages, tools, options in CASES:
            arguments = {"add_generation_prompt": True, **options}
            text = tokenizer.apply_chat_template(
                messages, tools=tools, chat_template=template, tokenize=False, **arguments)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            out.append({
                "name": f"{label}/{name}", "template": file, "hostile": name.startswith("hostile_"),
                "messages": messages, "tools": tools or [], "options": arguments, "text": text, "ids": ids})
    return out


WORDS = ["the", "Hello", "don't", "I'LL", "x1y22", "3.14", "été", "e\u0301te\u0301", "Ünïcödé", "naïve", "สวัสดี", "กำลัง",
         "नमस्ते", "क्षत्रिय", "தமிழ்", "中文字", "日本語テキスト", "한국어", "שָׁלוֹם", "مَرْحَبًا", "Привет", "👩‍👩‍👧", "🙂", "👍🏽", "\u0301x",
         "A\u030a", "\u212b", "\ufb01", "\u1e9b\u0323", "²³", "Ⅷ", "٣٤", "…", "—", "--", "==>", "!!!", "({[", "</a>", "&&",
         "\\n", "_snake_case", "camelCase", "\U000F0000", "\u200d", "\ufeff", "\u00ad", "\x00", "\x7f", "\ufffd"]
SPACES = ["", " ", "  ", "\n", "\n\n", "\t", " \n", "\n ", "\r\n", "\u00a0", "\u3000", "     ", "\n\n\n  "]
CONTROLS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|endoftext|>", "<|im_end", "<think"]


def strings():
    rng = random.Random(7)
    out = WORDS + SPACES + CONTROLS + ["".join(chr(c) for c in range(32, 127)), " " * 5000, "a" * 3000, "\n" * 700,
                                       "ab " * 900, "1234567890" * 50, "🙂" * 200, "\u0301" * 100]
    for _ in range(200):
        parts = []
        for _ in range(rng.randrange(1, 14)):
            parts += [rng.choice(SPACES), rng.choice(WORDS + CONTROLS if rng.random() < 0.2 else WORDS)]
        out.append("".join(parts) + rng.choice(SPACES))
    for _ in range(60):
        ranges = [(32, 126), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x900, 0x97F), (0xE00, 0xE7F),
                  (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0x1F300, 0x1F64F)]
        out.append("".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randrange(1, 40))))
    return list(dict.fromkeys(out))


def ways():
    messages = [{"role": "user", "content": "hi"}]
    return [{"template": way, "text": _compile_jinja_template(way).render(messages=messages, tools=None)}
            for way in WAYS]


def numbers():
    rng = random.Random(11)
    values = [rng.choice([1, -1]) * rng.random() * 10.0 ** rng.randint(-30, 30) for _ in range(400)]
    values += [float(rng.randrange(10**n)) for n in range(1, 25) for _ in range(4)]
    values += [round(rng.random() * 1000, n) for n in range(0, 12) for _ in range(4)]
    bits = (struct.unpack("<d", rng.randbytes(8))[0] for _ in range(400))
    values += [value for value in bits if value - value == 0]
    values += [sign * 2**n for n in range(0, 64) for sign in (1, -1)]
    return [{"values": values, "dumps": json.dumps(values), "str": str(values)}]


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FIXTURES / "tokenizer.json"))
    made_by = f"transformers {transformers.__version__}; tools/golden/text/make.py"
    rendered = render_all(tokenizer)
    encoded = [{"text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"],
                "decoded": tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])}
               for text in strings()]
    files = {"conversations": rendered, "strings": encoded, "ways": ways(), "numbers": numbers()}
    for name, cases in files.items():
        value = {"made_by": made_by, "cases": cases}
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
        (FIXTURES / f"{name}.json").write_text(text, encoding="utf-8", newline="\n")
    print({name: len(cases) for name, cases in files.items()})


if __name__ == "__main__":
    main()
