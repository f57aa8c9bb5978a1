"""Every rule by which weft leaves something out: what it means, what it counts, and what a user can do about it.

The table is data: reports, ``weft rules`` and the page on refusals read it, and no ``Refusal`` names a rule that is not
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["capture", "plan", "render", "build", "race", "rewrite", "run time", "cache", "any stage"]
Figure = float | int | str


@dataclass(frozen=True)
class Figures:
    """What the two figures of a refusal are. unit: of one, units: of several; none for figures that are texts.
    sentence: with both, where they are not compared in the usual words."""

    have: str
    limit: str
    unit: str = ""
    units: str = ""
    sentence: str = ""

    def text(self, have: Figure, limit: Figure) -> str:
        """``have 2 row dimensions, limit 0``, or ``have 1 column dimension, needs 2`` where more would be right."""
        if self.sentence:
            return self.sentence.format(have=have, limit=limit)
        unit = self.unit if have == 1 else self.units
        exceeded = not isinstance(have, str) and not isinstance(limit, str) and have >= limit
        return f"have {have}{' ' * bool(unit)}{unit}, {'limit' if exceeded else 'needs'} {limit}"


@dataclass(frozen=True)
class Rule:
    """One entry of the table. stage: of the pipeline, that says it; action: what a user can do."""

    name: str
    stage: Stage
    meaning: str
    action: str
    figures: Figures | None = None


def find_rule(name: str) -> Rule:
    """The rule of that name. Raises ValueError if there is none."""
    if name not in RULES:
        raise ValueError(f"no rule named {name!r} in the table of rules")
    return RULES[name]


def markdown(rules: Iterable[Rule]) -> str:
    """A table of rules, a line a rule."""
    lines = ["| rule | stage | what it means | have | limit | what you can do |", "|---|---|---|---|---|---|"]
    for rule in rules:
        have, limit = ("", "") if rule.figures is None else (rule.figures.have, rule.figures.limit)
        lines.append(f"| `{rule.name}` | {rule.stage} | {rule.meaning} | {have} | {limit} | {rule.action} |")
    return "\n".join(lines)


NOTHING = "Nothing: this is no loss."
TIMES = "{have} us predicted, {limit} us left to Inductor"

_TABLE = (
    Rule(
        "unsupported_op",
        "capture",
        "weft has no lowering for this ATen operation. Matrix products, attention, convolutions, scans, sorts and "
        "indexing are meant to stay with TorchInductor; regions end at them.",
        "Nothing for those. Otherwise write it with pointwise operations and sums, or add a lowering to weft.",
    ),
    Rule(
        "unsupported_form",
        "capture",
        "weft has a lowering for the operation, but not for these operands: their dtype or layout, a tensor without "
        "elements, a number that is known at run time only, a gather of several elements.",
        "Convert the operand before the reduction, e.g. with `.float()`; the README names the dtypes.",
        Figures(
            "elements of the tensor, or that are gathered a row", "elements that weft takes", "element", "elements"
        ),
    ),
    Rule(
        "narrows_random",
        "capture",
        "The node is all that is made of random numbers and smaller than they are, as the mask of a dropout. "
        "TorchInductor draws the numbers where the node is computed, so that they are never in memory; weft would read "
        "them.",
        NOTHING,
        Figures("bytes of the node", "bytes of the random numbers", "byte", "bytes"),
    ),
    Rule(
        "misaligned",
        "capture",
        "An index (`arange`) runs along several dimensions at once, of which one has a size that is known at run time "
        "only; or the shapes of a region are not products of the same dimensions.",
        "Compile with fixed sizes (`dynamic=False`).",
        Figures("the size on one side", "what it has to be"),
    ),
    Rule(
        "no_reduction",
        "capture",
        "No sum, maximum or other reduction works on the same data. TorchInductor's pointwise kernels are as good.",
        NOTHING,
    ),
    Rule(
        "ahead_of_time",
        "capture",
        "AOTInductor compiles the graph into a package. Packages run without Python, and weft's kernels are found and "
        "built with it. The whole graph is left to TorchInductor, and the package works without weft.",
        "Nothing for packages; `torch.compile` with `cpp_wrapper` has weft's kernels.",
    ),
    Rule(
        "no_backend",
        "plan",
        "weft generates no code for this kind of device, as GPUs below compute capability 8.0, those of AMD and those "
        "that the installed Triton does not know, or needs a package for it that is missing; the region is left to "
        "TorchInductor.",
        "On an NVIDIA GPU `pip install triton`, if the message says that it is missing. `weft explain NAME "
        "--target h200` shows a plan for a GPU on any machine.",
        Figures("the device", "the devices that there is a backend for"),
    ),
    Rule(
        "dimensions",
        "plan",
        "The region has more dimensions than the search over all splits into rows and columns is made for.",
        "Compile it as several functions, each with fewer dimensions.",
        Figures("dimensions of the region", "dimensions that are searched at most", "dimension", "dimensions"),
    ),
    Rule(
        "separate_dimensions",
        "plan",
        "Parts of the region have only single numbers in common. As loops around each other their dimensions would "
        "compute each part again for every index of the others.",
        "Compile them as functions of their own.",
        Figures("parts with dimensions of their own", "parts of a pass", "part", "parts"),
    ),
    Rule(
        "partial_row",
        "plan",
        "Under this split of the dimensions a reduction would be over a part of a row only. It speaks of "
        "that split; the planner takes another one.",
        NOTHING,
        Figures(
            "column dimensions that the reduction drops, or that its operand varies over",
            "all column dimensions of the split",
            "column dimension",
            "column dimensions",
        ),
    ),
    Rule(
        "online_reduction",
        "plan",
        "A reduction whose centre moves with the rows (`sumexp`, `m2`) is only there for columns of whole tiles. The "
        "planner makes such reductions where they fit; only a program written by hand has others.",
        "Write `max`, `exp` and `sum`, or `mean` and `sum`, into the program instead.",
        Figures(
            "dimensions: columns of the split, dropped ones that are no rows, or those of the operand",
            "dimensions that the reduction is made for",
            "dimension",
            "dimensions",
        ),
    ),
    Rule(
        "outer_dependency",
        "plan",
        "A value of every row needs the result of a reduction over the rows, which is complete only after the last of "
        "them. One pass cannot compute both; the region is cut into two kernels there.",
        "Nothing: the data asks for two passes, as in a batch norm.",
        Figures(
            "row dimensions that the value varies over and the reduction drops",
            "none in the same pass",
            "row dimension",
            "row dimensions",
        ),
    ),
    Rule(
        "epilogue_reduction",
        "plan",
        "A reduction of what a reduction over the rows returns. After the rows a kernel computes pointwise only, so "
        "the region is cut into two kernels there.",
        "Nothing: the second kernel reads the small result of the first.",
        Figures("reductions after the rows", "none in the same kernel", "reduction", "reductions"),
    ),
    Rule(
        "epilogue_operand",
        "plan",
        "What follows a reduction over the rows needs a value of single rows, which is gone by then. The region is cut "
        "into two kernels there.",
        "Nothing, or compute that value from inputs that have no rows.",
        Figures("values of single rows that are needed after the rows", "none in the same kernel", "value", "values"),
    ),
    Rule(
        "row_invariant_reduction",
        "plan",
        "Under this split a reduction that is the same for every row would be computed again in each of them. It "
        "speaks of that split; the planner takes another one.",
        NOTHING,
        Figures("row dimensions over which it would be repeated", "none", "row dimension", "row dimensions"),
    ),
    Rule(
        "strided_columns",
        "plan",
        "Under this split neighbours along the columns are not neighbours in memory, and another split, under which "
        "they are, needs no more passes. It speaks of that split; the planner takes another one.",
        NOTHING,
        Figures("passes", "passes of a split whose columns are neighbours", "pass", "passes"),
    ),
    Rule(
        "not_worthwhile",
        "plan",
        "The cost model predicts that weft's kernels are no faster than leaving the region to TorchInductor. The "
        "estimates behind both figures are in `figures` of the refusal.",
        "Nothing; larger tensors, or more operations around the reduction, change the answer.",
        Figures(
            "microseconds predicted with weft",
            "microseconds predicted where the region is left to TorchInductor",
            sentence=TIMES,
        ),
    ),
    Rule(
        "fused_further",
        "plan",
        "A rotation would be a kernel of its own, but TorchInductor computes it in one kernel with what reads it, or "
        "with what it reads: something that is never stored now would be.",
        NOTHING,
    ),
    Rule(
        "interrupted",
        "plan",
        "An operation that weft has no lowering for stands in what would be one region, and TorchInductor "
        "fuses all of it. With what is left around them, weft's kernels are predicted to be no faster than that.",
        "Write the operation that the message names with others that weft has.",
        Figures(
            "microseconds predicted with weft and what is left around it",
            "microseconds predicted where all of it is left to TorchInductor",
            sentence=TIMES,
        ),
    ),
    Rule(
        "row_registers",
        "plan",
        "A row with all of its column sums does not fit the registers of a multiprocessor. As many sums as fit share a "
        "kernel with the rows; the others are done in a second one, which reads what it needs again.",
        "Nothing: a kernel that spills registers would be slower.",
        Figures("registers a thread needs", "registers it can have", "register", "registers"),
    ),
    Rule(
        "max_reads",
        "plan",
        "A kernel of rows and of columns would read more buffers than the option `max_reads` allows; they are reduced "
        "in kernels of their own. It counts a weight as much as a matrix, as TorchInductor's "
        "`mix_order_reduction_max_reads` does, and is there for comparison: without it predicted times decide.",
        "Leave `max_reads` at 0.",
        Figures("buffers that the kernel would read", "`max_reads`", "buffer", "buffers"),
    ),
    Rule(
        "mix_order",
        "plan",
        "Rows and columns could be reduced in one kernel, but the option `mix_order` is off, which is there for "
        "comparison with TorchInductor's of that name.",
        "Leave `mix_order` on.",
        Figures("reductions over rows beside those over columns", "none in the same kernel", "reduction", "reductions"),
    ),
    Rule(
        "registers",
        "plan",
        "What a thread has to hold at a time, as of many tensors that meet, does not fit its registers under any "
        "schedule. The region is cut into kernels that store what the next ones need.",
        "Nothing: a kernel that spills registers would be slower.",
        Figures("registers a thread needs", "registers it can have", "register", "registers"),
    ),
    Rule(
        "apart",
        "plan",
        "Rows and columns are predicted to take less time in several kernels than in one. Few rows, for instance, are "
        "read a second time, from the caches, sooner than partial column sums are written and added up.",
        NOTHING,
        Figures(
            "microseconds predicted in one kernel",
            "microseconds predicted in several",
            sentence="{have} us in one kernel, {limit} us in several",
        ),
    ),
    Rule(
        "tuned_schedule",
        "plan",
        "A stored schedule of `weft tune` is none that the kernel can have: it is from another release of weft, or the "
        "file that was imported says something else. The predicted one is taken.",
        "Tune again, or `weft tune --forget`.",
    ),
    Rule(
        "triton_dtype",
        "render",
        "Triton has no type for a dtype of the kernel's tensors.",
        "Convert the tensor before the reduction; the README names the dtypes.",
        Figures("dtypes without a type", "none", "dtype", "dtypes"),
    ),
    Rule(
        "triton_wide_sums",
        "render",
        "Columns are summed up in rows that are too wide for registers, which a Triton kernel loops over.",
        "Nothing: it is left to TorchInductor.",
        Figures("column sums of such rows", "none", "sum", "sums"),
    ),
    Rule(
        "triton_segments",
        "render",
        "A column sum keeps some of the row dimensions that others keep, where the Triton backend takes all or none.",
        "Nothing: it is left to TorchInductor.",
        Figures("row dimensions that it keeps", "row dimensions that others keep", "dimension", "dimensions"),
    ),
    Rule(
        "triton_grid",
        "render",
        "Nothing is reduced along rows, whose columns are so many that a launch cannot have a program for each block.",
        "Cut the rows into several, e.g. `x.view(-1, n)`.",
        Figures("blocks of columns", "blocks that a launch can have", "block", "blocks"),
    ),
    Rule(
        "triton_index",
        "render",
        "A dimension of nearly 2^31 elements, or one whose size is known at run time only and turns out to be larger: "
        "its index has 32 bits.",
        "Cut the dimension into several, e.g. `x.view(-1, n)`, or compile with its size known.",
        Figures(
            "elements along the dimensions", "elements that 32 bits can count, but for a tile", "element", "elements"
        ),
    ),
    Rule(
        "cpp_dtype",
        "render",
        "The C++ backend has no vectors for a dtype of the kernel's tensors.",
        "Convert the tensor before the reduction; the README names the dtypes.",
        Figures("dtypes without vectors", "none", "dtype", "dtypes"),
    ),
    Rule(
        "race_lost",
        "race",
        "With the option `race` the region was timed in weft's kernels and in TorchInductor's code for the same nodes. "
        "The latter was faster by more than the noise: the model of time missed it.",
        "Nothing: this is no loss. The predicted time and the margin are in `figures` of the refusal.",
        Figures(
            "microseconds measured with weft",
            "microseconds measured with TorchInductor's code",
            sentence="{have} us measured with weft, {limit} us with Inductor's code",
        ),
    ),
    Rule(
        "not_raced",
        "race",
        "With the option `race` the region was to be timed in weft's kernels and in TorchInductor's code, and that "
        "could not be done. weft's kernels are taken, as without the option.",
        "Free memory where there was too little; otherwise nothing.",
        Figures("bytes that the race may need", "bytes that are free", "byte", "bytes"),
    ),
    Rule(
        "not_assembled",
        "rewrite",
        "A tensor is put together from parts that several regions write. One of them was left out after capture, so "
        "the parts stay tensors of their own and are copied.",
        "See why the other region was left out.",
        Figures("parts in regions that are taken", "all parts of the tensor", "part", "parts"),
    ),
    Rule(
        "run_time_failure",
        "run time",
        "A kernel of the region failed, or was found to be wrong, earlier in this process. It runs on ATen; the next "
        "compile leaves the region out.",
        "Remove the cause that the warning names and start the process again; report a kernel that was wrong, with its "
        "script.",
    ),
    Rule(
        "no_compiler",
        "build",
        "The C++ compiler does not work: it refuses an empty kernel, or does not answer. The region is left to "
        "TorchInductor.",
        "Unset `CXX` or correct it, or install another compiler; the message says who named this one and what it "
        "printed, and `weft doctor` whether it works.",
    ),
    Rule(
        "internal_error",
        "any stage",
        "A stage of weft failed in a way it does not know. It is a defect of weft. The region is left to "
        "TorchInductor.",
        "Report it: the message has the stage and the error.",
    ),
    Rule(
        "cache_folder",
        "cache",
        "Other users could put code into the folder of compiled kernels. It is not used; kernels are compiled for this "
        "process alone.",
        "Take the rights away that the message names, or set `WEFT_CACHE_DIR` to a folder of your own.",
        Figures("mode or owner of the folder", "what it has to be"),
    ),
)
RULES = {rule.name: rule for rule in _TABLE}
