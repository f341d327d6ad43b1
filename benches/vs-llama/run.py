#!/usr/bin/env python3
"""Cherenkov and llama.cpp on the same weights, in turns.

Needs Python 3.9 or later, a C++ compiler, pip's package index and (for Cherenkov) a Rust toolchain.
Everything it makes lies in --work; finished steps are not repeated. See README.md.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VERSION = "0.3.36"
# A GGUF file has no draft head, so none is made. llama.cpp wants n-gram rows as wide as the hidden
# size: both presets have that.
GEOMETRIES = {
    "real": ["--preset", "flash-next", "--layers", "6", "--experts", "128", "--vocab", "32768"],
    "small": ["--preset", "small"],
}
# GGML_NATIVE=ON would also choose AMX. GCC 12 compiles that into code which ends with SIGILL (see
# README.md), so the instruction sets are named.
SETS = ["AVX", "AVX2", "FMA", "F16C", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def call(command, **options):
    say("+ " + " ".join(str(part) for part in command))
    subprocess.run([str(part) for part in command], check=True, **options)


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--work", type=Path, default=ROOT / "target" / "vs-llama", help="where everything is put")
    p.add_argument("--cherenkov", type=Path, help="the program; built from this repository when not given")
    p.add_argument("--llama-bench", type=Path, help="the program; built from PyPI's source when not given")
    p.add_argument("--geometry", default="real", help="real, small or both (real,small)")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--prompt", default="512", help="prompt lengths, such as 512,4096")
    p.add_argument("--generate", type=int, default=64)
    p.add_argument("--rounds", type=int, default=3, help="how often both programs take their turn")
    p.add_argument("--isa", help="instruction set of Cherenkov [default: the best there is]")
    p.add_argument("--chunk", default="512", help="rows of a pass of Cherenkov; llama.cpp's is 512")
    p.add_argument("--amx", action="store_true", help="llama.cpp with AMX; needs clang, GCC 12 breaks it")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--json", type=Path, help="write all samples and medians to this file")
    args = p.parse_args()
    for name in args.geometry.split(","):
        if name not in GEOMETRIES:
            p.error(f"--geometry {name}: expected one of {', '.join(GEOMETRIES)}")
    if args.rounds < 1 or args.generate < 1:
        p.error("--rounds and --generate must be at least 1")
    return args


def build_cherenkov():
    call(["cargo", "build", "--release", "-p", "cherenkov"], cwd=ROOT)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return (ROOT / target / "release" / "cherenkov").resolve()


def llama_source(work):
    """The source that llama-cpp-python carries, checked against requirements.txt."""
    folder = work / f"llama_cpp_python-{VERSION}"
    source = folder / "vendor" / "llama.cpp"
    if not (folder / ".whole").exists():
        call([pip(work), "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
              "--require-hashes", "-d", work, "-r", HERE / "requirements.txt"])
        with tarfile.open(work / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
            archive.extractall(work)
        (folder / ".whole").touch()
    return source


def pip(work):
    folder = work / "venv"
    program = folder / ("Scripts" if os.name == "nt" else "bin") / "pip"
    if not (folder / ".whole").exists():
        call([sys.executable, "-m", "venv", folder])
        # scikit-build-core: what the source package needs to tell its own name.
        call([program, "install", "-q", "cmake", "ninja", "scikit-build-core"])
        (folder / ".whole").touch()
    return program


def build_llama(args):
    work = args.work
    source = llama_source(work)
    tools = pip(work).parent
    build = work / ("build-amx" if args.amx else "build")
    program = build / "bin" / ("llama-bench.exe" if os.name == "nt" else "llama-bench")
    if program.exists():
        return program
    names = {"GGML_NATIVE": "OFF", "LLAMA_CURL": "OFF", "LLAMA_OPENSSL": "OFF", "CMAKE_BUILD_TYPE": "Release",
             "LLAMA_BUILD_TESTS": "OFF", "LLAMA_BUILD_EXAMPLES": "OFF"}
    if platform.machine() in ("x86_64", "AMD64"):
        names.update({f"GGML_{name}": "ON" for name in SETS})
    else:
        names["GGML_NATIVE"] = "ON"
    if args.amx:
        if not shutil.which("clang++"):
            sys.exit("error: --amx: found no clang++; install clang, GCC 12 builds AMX code that crashes")
        # clang before 17 spells the macro that llama.cpp asks for otherwise.
        macro = "-D__AMX_INT8__=1"
        names.update({"GGML_AMX_TILE": "ON", "GGML_AMX_INT8": "ON", "GGML_OPENMP": "OFF",
                      "CMAKE_C_COMPILER": "clang", "CMAKE_CXX_COMPILER": "clang++",
                      "CMAKE_C_FLAGS": macro, "CMAKE_CXX_FLAGS": macro})
    env = dict(os.environ, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    flags = [f"-D{name}={value}" for name, value in names.items()]
    call([tools / "cmake", "-G", "Ninja", "-S", source, "-B", build, *flags], env=env)
    call([tools / "ninja", "-C", build, f"-j{args.jobs}", "llama-bench"], env=env)
    return program


def models(args, ours, name):
    """A store of random weights, and a GGUF file of exactly the same ones."""
    store, file = args.work / name, args.work / f"{name}.gguf"
    if not (store / "manifest.json").exists():
        call([ours, "synth", store, *GEOMETRIES[name], "--no-draft-head"])
    if not file.exists():
        command = [ours, "export", "--gguf", file, "--model", store, "--experts", "q4_0", "--dense", "q8_0"]
        say("+ " + " ".join(map(str, command)))
        said = subprocess.run(list(map(str, command)), check=True, stderr=subprocess.PIPE, text=True).stderr
        say(said.strip())
        if said.count(" exact") != 3:
            file.unlink()
            sys.exit("error: the export is not exact, so the weights would differ; make the store anew")
    return store, file


def run(command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def ours_once(args, program, store, threads):
    command = [program, "bench", "--model", store, "--tokens", "random", "--drafts", "0", "--repeat", "1",
               "--threads", threads, "--prompt", args.prompt, "--generate", args.generate,
               "--chunk", args.chunk, "--json", "-"]
    found = run(command + (["--isa", args.isa] if args.isa else []))
    rates = {row["test"]: row["tokens_per_second"] for row in found["results"]}
    reads = [row["read_bytes_per_second"] for row in found["results"] if row["read_bytes_per_second"]]
    return rates, found, statistics.median(reads)


def theirs_once(args, program, file, threads):
    found = run([program, "-m", file, "-p", args.prompt, "-n", args.generate, "-t", threads, "-r", 1, "-o", "json"])
    name = lambda row: f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    return {name(row): row["avg_ts"] for row in found}, found[0]


def compare(args, ours, theirs, name):
    store, file = models(args, ours, name)
    rows, about = [], {}
    for threads in map(int, args.threads.split(",")):
        samples = {}
        for round_number in range(args.rounds):
            # Who comes first changes from round to round.
            turns = ["ours", "theirs"] if round_number % 2 == 0 else ["theirs", "ours"]
            for turn in turns:
                say(f"{name}, {threads} threads, round {round_number + 1} of {args.rounds}: {turn}")
                if turn == "ours":
                    rates, found, read = ours_once(args, ours, store, threads)
                    about["cherenkov"] = {key: found[key] for key in ("version", "machine", "model")}
                    about["weight_bytes_per_token"] = found["weight_bytes_per_token"]
                    isa = found["results"][0]["isa"]
                    samples.setdefault("read", []).append(read)
                else:
                    rates, found = theirs_once(args, theirs, file, threads)
                    keys = ("build_commit", "cpu_info", "model_type", "model_size")
                    about["llama.cpp"] = {key: found[key] for key in keys}
                for test, rate in rates.items():
                    samples.setdefault(test, {}).setdefault(turn, []).append(rate)
        read = statistics.median(samples.pop("read"))
        for test, both in samples.items():
            pairs = list(zip(both["ours"], both["theirs"]))
            row = {"geometry": name, "threads": threads, "test": test, "isa": isa, "samples": both,
                   "cherenkov": statistics.median(both["ours"]), "llama.cpp": statistics.median(both["theirs"]),
                   "ratio": statistics.median(a / b for a, b in pairs)}
            if test.startswith("tg"):
                share = about["weight_bytes_per_token"] / read
                row["roofline"] = {key: row[key] * share for key in ("cherenkov", "llama.cpp")}
                row["read_bytes_per_second"] = read
            rows.append(row)
    return rows, about


def table(rows):
    lines = [f"{'geometry':<9} {'threads':>7}  {'test':<7} {'cherenkov':>10} {'llama.cpp':>10}  {'ratio':>6}  roofline"]
    for r in rows:
        share = r.get("roofline")
        share = f"{100 * share['cherenkov']:.1f} % and {100 * share['llama.cpp']:.1f} %" if share else "-"
        lines.append(f"{r['geometry']:<9} {r['threads']:>7}  {r['test']:<7} {r['cherenkov']:>10.2f} "
                     f"{r['llama.cpp']:>10.2f}  {r['ratio']:>6.2f}  {share}")
    return "\n".join(lines)


def main():
    args = parse()
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    ours = args.cherenkov.resolve() if args.cherenkov else build_cherenkov()
    theirs = args.llama_bench.resolve() if args.llama_bench else build_llama(args)
    rows, about = [], {}
    for name in args.geometry.split(","):
        more, about[name] = compare(args, ours, theirs, name)
        rows += more
    print("tokens per second, medians of", args.rounds, "rounds; ratios of each round, their median")
    print(table(rows))
    if args.json:
        build = {"amx": args.amx, "sets": SETS, "source": f"llama-cpp-python {VERSION}"}
        text = json.dumps({"about": about, "llama_build": build, "results": rows}, indent=2)
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
