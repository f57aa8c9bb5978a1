"""Every rule by which weft leaves something out, made to say so: the table of rules, what is printed, and its page."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import weft
from tests import cuda_refusals as _cuda_refusals  # noqa: F401  it adds to the cases
from tests.refusal_cases import CASES
from weft import rules
from weft.errors import Refusal
from weft.plan import planner
from weft.rules import RULES, Figure

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "weft").rglob("*.py"))


# the cases


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_says_no_with_its_message_and_figures(
    rule: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if rule != "not_worthwhile":
        monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    cases = [case for case in CASES if case.rule == rule]
    assert cases, f"no test makes the rule {rule} say no"
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        with monkeypatch.context() as patch:
            refusal = case.make(patch, folder)
        assert str(replace(refusal, where=None)).replace(str(folder), "FOLDER") == case.printed
        assert (refusal.rule, refusal.have, refusal.limit) == (rule, case.have, case.limit)
        assert (type(refusal.have), type(refusal.limit)) == (type(case.have), type(case.limit))
        plain = refusal.to_dict()
        assert (plain["have"], plain["limit"]) == (case.have, case.limit)


def test_both_times_are_those_of_the_estimates_behind_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for case in (case for case in CASES if case.rule == "not_worthwhile"):
        refusal = case.make(monkeypatch, tmp_path)
        for figure, name in ((refusal.have, "together"), (refusal.limit, "apart")):
            assert refusal.figures[name]
            total = sum(estimate["predicted_us"] for estimate in refusal.figures[name])
            assert figure == round(total, 1) == round(refusal.figures[f"{name}_us"], 1)


def test_a_rule_with_figures_shows_them_and_one_without_has_none() -> None:
    shown = {case.rule for case in CASES if case.have is not None}
    assert shown == {name for name, rule in RULES.items() if rule.figures is not None}


# the table


def named_rules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every rule that a module writes down: in ``Refusal(...)``, in ``x.refuse(node, ...)``, in
    ``Cut(value, operand, ...)`` and where one, or several in a tuple, are compared with the rule of something."""
    places = {"Refusal": 0, "refuse": 1, "Cut": 2}
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in places and len(node.args) > places[name]:
                found = [node.args[places[name]]]
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "rule":
            for other in node.comparators:
                found += other.elts if isinstance(other, ast.Tuple) else [other]
        for argument in found:
            if isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)
            else:
                assert isinstance(argument, ast.Name), f"line {node.lineno}: a rule is written down where it is meant"
                assert argument.id == "rule", f"line {node.lineno}: a rule is written down where it is meant"


def test_the_sources_and_the_table_have_the_same_rules() -> None:
    used: set[str] = set()
    for path in SOURCES:
        for line, name in named_rules(ast.parse(path.read_text())):
            assert name in RULES, f"{path.name}:{line}: no rule {name!r} in the table"
            used.add(name)
    assert used == RULES.keys()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Refusal("a", x)', ["a"]),
        ('errors.Refusal("b", x)', ["b"]),
        ('growth.refuse(node, "c", text)', ["c"]),
        ('Cut(v, o, "d", ())', ["d"]),
        ('if cut.rule != "e": pass', ["e"]),
        ('if cut.rule in ("f", "g"): pass', ["f", "g"]),
        ("def refuse(rule): Refusal(rule, x)", []),
    ],
)
def test_the_scan_sees_rules(text: str, found: list[str]) -> None:
    assert [name for _, name in named_rules(ast.parse(text))] == found


def test_the_scan_wants_names_in_place() -> None:
    with pytest.raises(AssertionError, match="line 1: a rule is written down where it is meant"):
        list(named_rules(ast.parse('Refusal("a" + b, x)')))


def test_entries_are_sentences() -> None:
    for name, rule in RULES.items():
        assert rule.name == name
        for text in (rule.meaning, rule.action):
            assert text[0].isupper() or text.startswith("weft ")
            assert text.endswith(".")
            assert "|" not in text  # the page has them in a table


def test_a_refusal_is_made_of_what_the_table_explains() -> None:
    with pytest.raises(ValueError, match=r"^no rule named 'too_slow' in the table of rules$"):
        Refusal("too_slow", "f", "is too slow")
    with pytest.raises(ValueError, match=r"^no_reduction: the table of rules has no figures for it$"):
        Refusal("no_reduction", "f", "has none", have=0, limit=1)
    for half in ({"have": 1}, {"limit": 1}):
        with pytest.raises(ValueError, match=r"^dimensions: have and limit are two figures or none$"):
            Refusal("dimensions", "f", "has too many", **half)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("have", "limit", "text"),
    [
        (0, 0, "have 0 dimensions, limit 0"),
        (1, 0, "have 1 dimension, limit 0"),
        (1, 2, "have 1 dimension, needs 2"),
        (2.5, 1, "have 2.5 dimensions, limit 1"),
        ("s0", 1, "have s0 dimensions, needs 1"),
    ],
)
def test_figures_have_a_unit_and_say_which_way_they_bound(have: Figure, limit: Figure, text: str) -> None:
    refusal = Refusal("dimensions", "f", "has too many", have, limit)
    assert refusal.compared == text
    assert str(refusal) == f"dimensions: f: has too many ({text})"


# what people see


PAGE = ROOT / "docs" / "refusals.md"
MARKS = ("<!-- begin of `weft rules --markdown` -->\n", "<!-- end -->\n")


def test_the_page_has_the_table(update_golden: bool) -> None:
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    old, _, after = rest.partition(MARKS[1])
    new = f"\n{rules.markdown(RULES.values())}\n\n"
    if update_golden:
        PAGE.write_text(f"{before}{MARKS[0]}{new}{MARKS[1]}{after}")
    else:
        assert old == new, "write it anew with `pytest tests/test_refusals.py --update-golden`"


def test_the_page_shows_what_every_rule_prints() -> None:
    """Lines behind code are compared with what it prints by the test of all pages; those in the text are here."""
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    whole = before + rest.partition(MARKS[1])[2]
    blocks, text = "".join(whole.split("```")[1::2]), " ".join("".join(whole.split("```")[::2]).split())
    for name in RULES:
        printed = [case.printed.replace("FOLDER", "/data/weft") for case in CASES if case.rule == name]
        assert f"\n{name}: " in blocks or any(f"`{line}`" in text for line in printed), name
        assert text.count(f"`{name}: ") == sum(f"`{line}`" in text for line in printed), name


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    from weft.cli import run

    code = run(["rules", *arguments])
    return code, *capsys.readouterr()


def test_the_command_shows_one_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "epilogue_reduction", "internal_error") == (
        0,
        "epilogue_reduction (plan)\n"
        "  A reduction of what a reduction over the rows returns. After the rows a kernel computes pointwise\n"
        "  only, so the region is cut into two kernels there.\n"
        "  have: reductions after the rows\n"
        "  limit: none in the same kernel\n"
        "  What you can do: Nothing: the second kernel reads the small result of the first.\n"
        "\n"
        "internal_error (any stage)\n"
        "  A stage of weft failed in a way it does not know. It is a defect of weft. The region is left to\n"
        "  TorchInductor.\n"
        "  What you can do: Report it: the message has the stage and the error.\n",
        "",
    )


def test_the_command_shows_all_rules(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [f"{rule.name} ({rule.stage})" for rule in RULES.values()]
    code, out, _ = run(capsys)
    assert code == 0
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == shown
    assert run(capsys, "--markdown") == (0, rules.markdown(RULES.values()) + "\n", "")


@pytest.mark.parametrize("arguments", [("too_slow",), ("dimensions", "too_slow", "--markdown")])
def test_an_unknown_rule_is_wrong_input(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    known = ", ".join(RULES)
    code, out, error = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert error.startswith(f"weft: no rule 'too_slow'; one of {known}")


def test_the_page_of_an_explanation_says_what_to_do(tmp_path: Path) -> None:
    found = weft.explain(lambda x: x @ x.exp(), torch.randn(8, 8), target="cpu")
    text = found.to_html(tmp_path / "page.html").read_text().replace("<wbr>", "")
    for rule in ("unsupported_op", "no_reduction"):
        (line,) = [line for line in text.splitlines() if f'<td class="name">{rule}</td>' in line]
        assert f"<td>{RULES[rule].action}</td></tr>".replace("'", "&#39;") in line
