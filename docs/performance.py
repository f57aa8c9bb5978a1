"""Writes docs/performance.md, its picture, and tables of README.md from benchmarks/results: ``python
docs/performance.py``.

The files in benchmarks/results were measured on GPUs. Tables and picture follow from them on any machine; the picture
is drawn anew only where what it shows has changed.
"""

from __future__ import annotations

import inspect
import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # neither these pages nor the tests, of which the zoo is one, are in the package

from docs.performance_fusion import fusion_page  # noqa: E402
from docs.performance_readme import kernels_table, models_table, with_tables  # noqa: E402
from docs.performance_rows import rows_page, wide_cells  # noqa: E402
from docs.performance_zoo import RESULTS, ZOO, ZOO_H100, results_of, zoo, zoo_page, zoo_races  # noqa: E402
from docs.pictures import SOURCE, digest, source_of  # noqa: E402
from tools.gpu_drawn import spread  # noqa: E402

README = HERE.parent / "README.md"
PAGE_FILE, PICTURE = HERE / "performance.md", HERE / "pictures" / "h200.png"
NORMS = ("rms_norm_backward", "layer_norm_backward", "add_rms_norm_backward")
PEERS = ("inductor", "inductor_pipelined")
"""Whose times stand behind each figure of a table."""
LOGITS = ("logits_50257", "logits_128256", "logits_262144")
"""Results at the widths of vocabularies."""
NAMES = {
    "inductor": "TorchInductor",
    "inductor_pipelined": "TorchInductor, pipelined and without gates",
    "eager": "eager",
    "liger": "Liger",
    "quack": "Quack",
}

PAGE = """# Performance on a GPU

## Models

Models of transformers, timm and diffusers that nobody of this project wrote, made from their own configurations, one
training step of each: AdamW, bf16 autocast, no dropout, 4 layers of most; `tests/zoo/entries.py` has the sizes. A step
is the median of sixteen behind four others, weft, TorchInductor and eager PyTorch in turn on the same batches. Pairs
of figures are TorchInductor's and weft's: device time outside matrix products, attention and the optimizer; the most
memory that a step holds; the largest difference of a loss from eager's in twenty steps; and the first step with empty
and with full caches, in a process of its own that has one backend, beside four others. The gradients of every parameter
are compared with float64 in both dtypes; the figure is the largest error over what is allowed, twice eager's or
TorchInductor's.

Where several commands tried a model, the figures are those of the last. Steps of less than 35 ms wait for the host.

### On an H200

Steps of the models in `..._training_12` and `..._training_13` are of weft as it is, with kernels in CUDA C++; those of
others, of which all that follows is, are of weft before it had any. Steps of CLIP and the DiTs, and races of the
latter, are of weft before column sums alone were left to TorchInductor where that is faster, before TorchInductor's
code kept roundings on the way to an exponential, and before weights were loaded ahead of row sums and numbers written
to memory that nobody fills; Gemma 2's is of weft between the last two. Those of ConvNeXt are of weft before it computed
floats of 16 bits in pairs, and so is what else is in files `..._training_6`, `..._start_3` and `..._start_4`; all
others are of one before constants of column kernels were fitted again. Races in `..._race_2` and `..._race_3` are of
weft just before it had kernels in CUDA C++, but for the schedule of one kernel of Swin's. Gradients are of weft before
it kept these roundings, but for those of Mamba, Gemma 2 and the DeepSeek of experts. Where a command has `--repeat`,
the ratio of a step is the median of two or three processes, the times are of the first. First steps of the DiT of batch
1, Whisper, StableLM and the DeepSeek are of the first two commands, of weft as it was before the bound on registers.
The memory is what tensors ask for in `..._training_5` to `..._training_8`, one command a model, and in all others what
blocks they are given, which may be 1 % more or less by what other models of the process left. Mamba's step waits for
the host, of which the device works a third; its ratio was 0.99 in one process and 1.08 in another.

{zoo}

Races of regions with TorchInductor's code for the same nodes (`--check race`), and the time of a step with races over
that of one without, in turn:

{races}

Llama's losses were further from eager's than is allowed in `..._training_12` (0.011 nats in the fourth step, 0.009
allowed), and not in `..._training_13`, which had the same kernels from the caches (0.002). Its loss falls from 10.6 to
6.6 nats in one step, and in the fourth eager's own differs by 0.004 from process to process, TorchInductor's by 0.005.
GPT-2's loss jumps from 5.9 to 10.7 nats in the sixth step, and falls back; TorchInductor's differs most there.
First steps are of five models at a time on 16 cores, in the last two commands for them of three and of one,
TorchInductor's before weft's, and are from `torch.compile` on; with full caches they are medians of three, which differ
by a second each, but for those of the first two commands.

### On an H100

Steps of weft as it is, but for T5 and GPT-NeoX, of before constants of column kernels were fitted again. First steps
are of that weft, and of the models of the two commands with `start` alone; those of the first command's other models
include some seconds in which the GPU was measured, for want of constants that weft has now. Of the last of these
commands' models seven were started at a time.

{zooh100}

{racesh100}

## Kernels

Measured on {gpu}, torch {torch}, Triton {triton}, bf16, with nothing tuned. This page is written by
`python docs/performance.py` from the files in `benchmarks/results`, which have the commands that made them, as they
were run: modules that were in `weft.bench` then are in `tools` now. Chosen widths are of kernels whose rows were cut
into pieces of several sizes, drawn ones of rows that are equal pieces ([the note](notes/row_layouts.md)). All of these
are of weft before it had kernels in CUDA C++; ["Wide and odd rows"](#wide-and-odd-rows) has what is planned now, and
the picture both.

Each cell is one call of a function that weft compiled. Its figure is the *fraction of copy*: the time of a
device-to-device copy of the same bytes over the sum of the durations of the call's device kernels, the level-two cache
flushed before each, all candidates of a cell in turn in one run, medians over rounds. Behind it stand the times of
TorchInductor as it comes, and with pipelined loops and without the gates of its kernels of both directions, over
weft's: above one weft is faster. [Benchmarking](benchmarking.md) describes the protocol.

![Fraction of copy over the width of a row](pictures/h200.png)

Points beyond 8192 columns that lie below the line of their colour are of Triton's kernels, which are not planned there
any more.

## Widths drawn at random

Three seeds, drawn after the last change to what was planned before there were kernels in CUDA C++. Cells have 2^26
elements but for few rows, of which there are the same at any seed, and vocabularies. The table is of the cells of all
seeds; one in ten are below the figure behind the least one.

{drawn}

## 2^26 elements

`{command26}`

{table26}

What the bars of that command say is missed:

{missed26}

The least and the mean of the times of all peers over weft's. Eager runs the function as it is written, a backward in
float32; Liger and Quack run their own kernels of it, the backwards through autograd, without what is converted for
them: {packages}.

{peers26}

The backwards of the norms alone take {norms} of TorchInductor's time as it comes in geometric mean; that of softmax,
which has no column sums, runs at copy speed in TorchInductor already. If all four took the time of a copy in each cell,
TorchInductor would take {roof26:.2f} times as long: 1.5 is beyond the roof here.

## 2^25 elements

`{command25}`

{table25}

Missed, the bars three points lower:

{missed25}

{peers25}

No kernel of either size spills a register. With 2^25 elements the same forward takes 5 % more or less from one run to
the next, and so does a copy: much depends on where tensors lie. Most cells at which a forward is up to 5 % slower than
a peer's are others in each run; norms of 256 columns were among them in three of four.

## Few rows

`{commandfew}`

Times in microseconds, in brackets TorchInductor's over them.

{tablefew}

A launch takes as long as the data here or longer, and below 2 us where a kernel's code lies makes a tenth of a
difference; durations are counted in steps of 0.032 us. Backwards of 64 rows are two kernels, of rows and of columns.
Missed:

{missedfew}

{rows}{fusion}## Logits

Rows of vocabularies, 32768 of 50257, 8192 of 128256 and 4096 of 262144, and TorchInductor's time over ours:
`{commandlogits}`, and with the other two widths.

{tablelogits}

## float16 and float32

`{command16}`, and with `--dtype f32`.

{table16}

{table32}

## Training

Two small transformers (dim 512, 11 blocks, bf16 autocast, batch 24 of 2048 tokens, SGD), the median of eight steps
behind four others, and the largest difference of a loss from eager's. The first step compiles. The plain model ran
before weft had kernels in CUDA C++.

`{commandtraining}`

{tabletraining}

## Time on the host

Of calls on data so small that the device never holds them up: `{commandhost}`

{tablehost}

## Compile time

Of the residual-mix model with three blocks, forward and backward and their first run, in a process of its own, with
empty caches and with full ones; {pairs} pair(s): `{commandcompile}`

{tablecompile}

With kernels in CUDA C++, and in processes that do not find the package that compiles them: {pairsboth} pairs, the
first on a machine that had not loaded NVRTC before: `{commandboth}`

{tableboth}
"""


def main() -> None:
    """Write the page, and the picture if it is stale."""
    text, cells, drawn = written()
    PAGE_FILE.write_text(text)
    README.write_text(with_tables(README.read_text(), readme_tables()))
    if source_of(PICTURE) != (source := plot_source(cells, drawn)):
        plot(cells, drawn, source)


def readme_tables() -> dict[str, str]:
    """Those of README.md, by their names there."""
    found = {name: json.loads((RESULTS / f"h200_{name}.json").read_text()) for name in ("2p26", "training")}
    return {
        "steps": models_table(zoo(results_of(ZOO))),
        "kernels": kernels_table(found["2p26"]["cells"], found["training"]["models"]),
    }


def written() -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """The page, and the cells that its picture shows: chosen ones and drawn ones."""
    names = ("2p26", "2p25", "few_rows", "f16", "f32", "training")
    names += (*LOGITS, "host_time", "compile_time", "compile_time_cuda")
    drawn = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("h200_drawn_*.json"))]
    found = {name: json.loads((RESULTS / f"h200_{name}.json").read_text()) for name in names}
    norms = [c for c in found["2p26"]["cells"] if c["workload"] in NORMS and c["us"]]
    product = 1.0
    for cell in norms:
        product *= cell["us"]["weft"] / cell["us"]["inductor"]
    versions, machine = found["2p26"]["versions"], found["2p26"]["machine"]
    backwards = [c["us"] for c in found["2p26"]["cells"] if c["workload"] in (*NORMS, "softmax_backward")]
    page = PAGE.format(
        zoo=zoo_page(ZOO),
        races=zoo_races(ZOO),
        zooh100=zoo_page(ZOO_H100),
        racesh100=zoo_races(ZOO_H100),
        drawn=drawn_page(drawn),
        gpu=f"one {machine['gpu']}",
        torch=versions["torch"],
        triton=versions["triton"],
        command26=found["2p26"]["command"],
        command25=found["2p25"]["command"],
        commandfew=found["few_rows"]["command"],
        fusion=fusion_page([RESULTS / "h100_fusion.json", RESULTS / "h200_fusion.json"]),
        commandlogits=found[LOGITS[0]]["command"],
        commandtraining=found["training"]["command"],
        command16=found["f16"]["command"],
        commandhost=found["host_time"]["command"],
        commandcompile=found["compile_time"]["command"],
        table26=table(found["2p26"]["cells"]),
        table25=table(found["2p25"]["cells"]),
        tablefew=few_table(found["few_rows"]["cells"]),
        missedfew=missed(found["few_rows"]),
        rows=rows_page(RESULTS),
        peers26=peers_table(found["2p26"]["cells"]),
        peers25=peers_table(found["2p25"]["cells"]),
        packages="Liger 0.8.5, Quack 0.6.5",
        roof26=statistics.geometric_mean(us["inductor"] / us["copy"] for us in backwards),
        tablelogits=table([cell for name in LOGITS for cell in found[name]["cells"]], ("inductor",)),
        table16=table(found["f16"]["cells"]),
        table32=table(found["f32"]["cells"]),
        tabletraining=training_table(found["training"]),
        tablehost=host_table(found["host_time"]),
        tablecompile=compile_table(found["compile_time"]),
        pairs=len(found["compile_time"]["ratios"]["residual_mix"]["cold"]),
        commandboth=found["compile_time_cuda"]["command"],
        tableboth=compile_table(found["compile_time_cuda"], "weft without cuda"),
        pairsboth=len(found["compile_time_cuda"]["ratios"]["residual_mix"]["cold"]),
        missed26=missed(found["2p26"]),
        missed25=missed(found["2p25"]),
        norms=f"{product ** (1 / len(norms)):.0%}",
    )
    every = [cell for each in drawn for cell in each["cells"] if cell["us"]]
    widest = max(cell["columns"] for cell in found["2p26"]["cells"])
    chosen = [*found["2p26"]["cells"], *(cell for cell in wide_cells(RESULTS) if cell["columns"] > widest)]
    return page, chosen, [cell for cell in every if cell["group"] != "few rows"]


def few_table(cells: list[dict[str, Any]]) -> str:
    """A line a workload and width, a column a number of rows."""
    rows = sorted({c["rows"] for c in cells})
    by: dict[str, dict[int, str]] = defaultdict(dict)
    for cell in cells:
        us = cell["us"]
        shown = f"{us['weft']:.2f} ({us['inductor'] / us['weft']:.2f})"
        by[f"{cell['workload']} {cell['columns']}"][cell["rows"]] = shown
    lines = ["| | " + " | ".join(map(str, rows)) + " |", "|---" * (len(rows) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(row.get(count, "") for count in rows) + " |" for name, row in by.items()]
    return "\n".join(lines)


def training_table(found: dict[str, Any]) -> str:
    lines = ["| | eager | TorchInductor | weft | difference | TorchInductor's | kernels of weft |", "|---" * 7 + "|"]
    for name, model in found["models"].items():
        runs = model["runs"]
        steps = [f"{runs[b]['median_ms']:.1f} ms" for b in ("eager", "inductor", "weft")]
        apart = [f"{model['differences'][b]:.4f}" for b in ("weft", "inductor")]
        lines.append(f"| {name} | " + " | ".join([*steps, *apart, str(runs["weft"]["launches"])]) + " |")
    return "\n".join(lines)


def host_table(found: dict[str, Any]) -> str:
    lines = ["| us | eager | TorchInductor | weft | TorchInductor / weft |", "|---" * 5 + "|"]
    for line in found["lines"]:
        times = [f"{line['us'][b]['median']:.0f}" for b in ("eager", "inductor", "weft")]
        ratio = f"{line['over_weft']['inductor']['median']:.2f}"
        lines.append(f"| {line['what']} | " + " | ".join([*times, ratio]) + " |")
    return "\n".join(lines)


def compile_table(found: dict[str, Any], other: str = "inductor") -> str:
    name = NAMES.get(other, other)
    lines = [f"| s | {name} | weft | weft / {name} |", "|---" * 4 + "|"]
    for state, seconds in found["seconds"]["residual_mix"].items():
        times = [f"{statistics.median(seconds[b]):.1f}" for b in (other, "weft")]
        ratio = statistics.median(found["ratios"]["residual_mix"][state])
        lines.append(f"| {state} | " + " | ".join([*times, f"{ratio:.2f}"]) + " |")
    return "\n".join(lines)


def peers_table(cells: list[dict[str, Any]]) -> str:
    """A line a peer."""
    lines = ["| | cells | least | where | geometric mean |", "|---" * 5 + "|"]
    for peer, name in NAMES.items():
        found = {f"{c['workload']} {c['columns']}": c["us"][peer] / c["us"]["weft"] for c in cells if peer in c["us"]}
        least = min(found, key=lambda cell: found[cell])
        mean = statistics.geometric_mean(found.values())
        lines.append(f"| {name} | {len(found)} | {found[least]:.3f} | {least} | {mean:.2f} |")
    return "\n".join(lines)


def table(cells: list[dict[str, Any]], peers: tuple[str, ...] = PEERS) -> str:
    """A line a workload, a column a width."""
    widths = sorted({c["columns"] for c in cells})
    by: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for cell in cells:
        by[cell["workload"]][cell["columns"]] = cell
    lines = [f"| {cells[0]['dtype']} | " + " | ".join(map(str, widths)) + " |", "|---" * (len(widths) + 1) + "|"]
    for name, row in by.items():
        lines.append(f"| {name} | " + " | ".join(text(row.get(width), peers) for width in widths) + " |")
    return "\n".join(lines)


def text(cell: dict[str, Any] | None, peers: tuple[str, ...]) -> str:
    if cell is None:
        return ""
    if not cell["us"]:
        return cell["wrong"]
    us = cell["us"]
    found = [f"{us[peer] / us['weft']:.2f}" for peer in peers if peer in us]
    return f"{us['copy'] / us['weft']:.2f}" + (f" ({' '.join(found)})" if found else "")


def missed(found: dict[str, Any]) -> str:
    """Bars that were missed."""
    return "\n".join(f"- {line}" for line in found["missed"])


def drawn_page(found: list[dict[str, Any]]) -> str:
    """Of all seeds: what each command found, and one table."""
    summaries = "\n\n".join(f"`{each['command']}`: {drawn_summary(each)}" for each in found)
    lines = "\n".join(f"- {line}" for each in found for line in each["missed"])
    table = drawn_table([cell for each in found for cell in each["cells"]])
    return f"{table}\n\n{summaries}.\n\nWhat the bars of those commands say is missed:\n\n{lines}"


def drawn_table(cells: list[dict[str, Any]]) -> str:
    """Of each group of drawn cells and each workload: least, one in ten, mean, and TorchInductor's."""
    groups: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for cell in cells:
        if cell["us"]:
            groups[cell["group"], cell["workload"]].append(cell["us"])
    lines = ["| widths | workload | cells | least | one in ten | mean | of TorchInductor's time | at most |"]
    lines.append("|---" * 8 + "|")
    for (group, workload), own in groups.items():
        low, tenth, mean = spread([us["copy"] / us["weft"] for us in own])
        ratios = [us["weft"] / us["inductor"] for us in own if "inductor" in us]
        theirs = f"{statistics.geometric_mean(ratios):.2f} | {max(ratios):.2f}" if ratios else " | "
        lines.append(f"| {group} | {workload} | {len(own)} | {low:.2f} | {tenth:.2f} | {mean:.3f} | {theirs} |")
    return "\n".join(lines)


def drawn_summary(found: dict[str, Any]) -> str:
    """Of a seed: how well times were predicted, and where TorchInductor is faster."""
    done = [cell for cell in found["cells"] if cell["us"]]
    wrong = len(found["cells"]) - len(done)
    errors = [abs(math.log(c["predicted_us"] / c["us"]["weft"])) for c in done if c["predicted_us"]]
    near, far = (sum(error < math.log(most) for error in errors) / len(errors) for most in (1.15, 1.4))
    slower = [c["us"]["weft"] / c["us"]["inductor"] for c in done if "inductor" in c["us"]]
    few = [c["us"]["weft"] / c["us"]["inductor"] for c in done if c["group"] == "few rows" and "inductor" in c["us"]]
    counts = [sum(ratio > most for ratio in ratios) for ratios in (slower, few) for most in (1.02, 1.05)]
    return (
        f"{len(done)} cells, {wrong} wrong, {sum(c['spill_bytes'] > 0 for c in done)} with kernels that spill; times "
        f"predicted within 15 % in {near:.0%}, within 40 % in {far:.0%}; {counts[0]} more than 2 % slower than "
        f"TorchInductor, {counts[1]} more than 5 %, of which {counts[2]} and {counts[3]} have few rows"
    )


def plot_source(cells: list[dict[str, Any]], drawn: list[dict[str, Any]]) -> str:
    """The digest of what the picture shows: the figures, and how they are drawn."""
    shown = [[cell[name] for name in ("workload", "columns", "us")] for cell in (*cells, *drawn)]
    return digest(json.dumps([len(cells), shown]) + inspect.getsource(plot))


def plot(cells: list[dict[str, Any]], drawn: list[dict[str, Any]], source: str) -> None:
    """Fraction of copy over the width: lines of chosen cells, points of drawn ones."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 5), sharey=True)
    for axis, end in zip(axes, ("forward", "backward"), strict=True):
        for name in dict.fromkeys(c["workload"] for c in cells if f"_{end}" in c["workload"]):
            own = sorted((c for c in cells if c["workload"] == name and c["us"]), key=lambda c: c["columns"])
            axis.plot([c["columns"] for c in own], [c["us"]["copy"] / c["us"]["weft"] for c in own], "o-", label=name)
            theirs = [(c["columns"], c["us"]["copy"] / c["us"]["inductor"]) for c in own if "inductor" in c["us"]]
            color = axis.lines[-1].get_color()
            axis.plot(*zip(*theirs, strict=True), ":", color=color, alpha=0.6)
            points = [(c["columns"], c["us"]["copy"] / c["us"]["weft"]) for c in drawn if c["workload"] == name]
            axis.scatter(*zip(*points, strict=True) if points else ((), ()), s=9, color=color, alpha=0.7)
        axis.set(
            xscale="log", xlabel="columns (points: drawn at random; dotted: TorchInductor)", title=end, ylim=(0, 1.15)
        )
        axis.set_xscale("log", base=2)
        axis.axhline(1, color="black", linewidth=0.5)
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    axes[0].set_ylabel("fraction of copy, 2^26 elements")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110, metadata={SOURCE: source})


if __name__ == "__main__":
    main()
