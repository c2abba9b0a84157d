# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py as a program: full or partial run, where the file goes, usage errors."""

import importlib.util
import sys

import programs
import pytest
from compare_dumps import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import peers  # noqa: E402
import problems  # noqa: E402
import schema  # noqa: E402
from peers import session, verdict  # noqa: E402

PROGRAM = ROOT / "bench" / "peers.py"
SMALL = problems.parse("b1 hq2 hkv1 sq40 skv50 d8 bf16")


def load_program():
    spec = importlib.util.spec_from_file_location("peers_program", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


program = load_program()


def run(*args):
    return programs.run(sys.executable, PROGRAM, *args, timeout=120)


# ------------------------------------------------------------- full, partial
def outcome(problem, impls=verdict.NEEDED, calls=30) -> session.Outcome:
    found = session.Outcome()
    for impl in impls:
        for scope in verdict.NEEDED_SCOPES:
            found.rows.append(schema.make_row(problem.row(), impl, scope, "none", [1.0, 2.0]))
            found.calls[impl, scope, "none"] = calls
    return found


def full_outcomes() -> dict:
    return {name: outcome(p) for name, p in problems.select(list(verdict.FULL_PROBLEMS)).items()}


def why(outcomes, gpu="NVIDIA H200", commit="63efb7a"):
    return verdict.why_partial(outcomes, list(full_outcomes()), gpu, commit)


def test_a_full_run_has_everything():
    assert why(full_outcomes()) == []


def test_each_lack_makes_a_run_partial_and_is_named():
    def lacking(change):
        outcomes = full_outcomes()
        change(outcomes)
        return "; ".join(why(outcomes))

    wan = problems.parse("b1 hq40 hkv40 sq75600 skv75600 d128 bf16")
    without = tuple(i for i in verdict.NEEDED if i != "sageattention2")
    assert "length-4096 was not measured" in lacking(lambda o: o.pop("length-4096"))
    assert "no kernel row of sageattention2" in lacking(
        lambda o: o.update({"wan22-720p": outcome(wan, without)})
    )
    assert "12 calls of vc8/kernel, 30 needed" in lacking(
        lambda o: o.update({"wan22-720p": outcome(wan, calls=12)})
    )
    h3 = problems.select(["h3-243f"])["h3-243f"]
    assert lacking(lambda o: o.update({"h3-243f": outcome(h3, calls=12)})) == ""
    assert "9 calls of vc8/kernel, 12 needed" in lacking(
        lambda o: o.update({"h3-243f": outcome(h3, calls=9)})
    )
    assert "not an H200" in why(full_outcomes(), gpu="NVIDIA H100")[0]
    assert "clean checkout" in why(full_outcomes(), commit="63efb7a-dirty")[0]


def test_names_of_result_files_count_up(tmp_path):
    def path(full):
        return verdict.result_path(tmp_path, "NVIDIA H200", "2026-11-30T01:02:03Z", full)

    assert path(True) == tmp_path / "h200-20261130-1.json"
    path(True).touch()
    assert path(True).name == "h200-20261130-2.json"
    assert path(False) == tmp_path / "parts" / "h200-20261130-1.json"
    assert verdict.gpu_slug("NVIDIA RTX PRO 6000") == "rtx-pro-6000"


def write(tmp_path, outcomes, capsys):
    args = program.parse(["--out", str(tmp_path), "--commit", "63efb7a"])
    code = program.write(
        args, outcomes, {"fa4-bf16": "not there"}, "NVIDIA H200", "580.1", "2026-11-30T01:02:03Z"
    )
    return code, capsys.readouterr()


def test_a_full_run_is_written_as_the_schema_wants_it(tmp_path, capsys):
    code, said = write(tmp_path, full_outcomes(), capsys)
    assert code == 0 and "full run" in said.out
    data = schema.load(tmp_path / "h200-20261130-1.json")
    assert set(data) == {"gpu", "driver", "date", "commit", "problems", "rows"}


def test_a_partial_run_goes_to_parts_and_says_why(tmp_path, capsys):
    outcomes = full_outcomes()
    del outcomes["h3-243f"]
    code, said = write(tmp_path, outcomes, capsys)
    assert code == 0 and "h3-243f was not measured" in said.err
    data = schema.load(tmp_path / "parts" / "h200-20261130-1.json")
    assert "h3-243f was not measured" in data["note"] and not list(tmp_path.glob("*.json"))


def test_a_run_without_rows_writes_nothing(tmp_path, capsys):
    code, said = write(tmp_path, {}, capsys)
    assert code == 1 and "fa4-bf16: not there" in said.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("lost, expected", [(False, ["a", "c"]), (True, ["a"])])
def test_a_problem_that_fails_keeps_what_was_measured(monkeypatch, capsys, lost, expected):
    """The next problems go on, unless the GPU is gone."""

    def fake_run(problem, *args, **kwargs):
        if problem == "b":
            raise MemoryError("out of memory")
        return session.Outcome()

    def check():
        if lost:
            raise session.DeviceLost("illegal memory access")

    monkeypatch.setattr(session, "run", fake_run)
    monkeypatch.setattr(session, "check_device", check)
    monkeypatch.setattr(program.measure, "cost", lambda problem, wanted, brief: 1.0)
    args = program.parse(["--budget-s", "60"])
    args.problems = {name: name for name in "abc"}
    monkeypatch.setattr(program, "table", lambda *row: "")
    found = program.measure_all(args, {}, None, 0.0, print, print)
    assert list(found) == expected
    said = capsys.readouterr().err
    assert "b was given up: MemoryError: out of memory" in said
    assert ("takes no more work" in said) == lost


def test_a_brief_run_measures_less_after_the_first_problem(monkeypatch):
    asked = []

    def fake_run(problem, adapters, *args, wanted, **kwargs):
        asked.append((wanted, sorted(adapters)))
        return session.Outcome()

    monkeypatch.setattr(session, "run", fake_run)
    monkeypatch.setattr(program, "table", lambda *row: "")
    args = program.parse(["--brief", "--problems", "wan22-720p,length-8192"])
    adapters = dict.fromkeys(("vc8", "vc8-paper", "fa4-bf16"))
    program.measure_all(args, adapters, None, program.time.monotonic(), print, print)
    assert asked == [(30, ["fa4-bf16", "vc8", "vc8-paper"]), (15, ["fa4-bf16", "vc8"])]
    assert program.BRIEF_CALLS >= verdict.OTHER_CALLS


def test_the_table_shows_every_row():
    found = outcome(SMALL, ("vc8",))
    found.missing["fa4-bf16"] = "not there"
    text = program.table("small", SMALL, found)
    assert text.count("\n") == 4 and "fa4-bf16         left out: not there" in text


# ------------------------------------------------------------------ the program
@pytest.mark.parametrize(
    "args, words",
    [
        (["--impls", "vc9"], ["vc9", "allowed", "fa3-bf16"]),
        (["--impls", "vc8", "--skip", "vc8"], ["no implementation is left"]),
        (["--problems", "nope"], ["nope", "allowed", "wan22-720p"]),
        (["--problems", "b1 hq1 hkv1 sq0 skv4 d8 bf16"], ["no queries"]),
        (["--problems", "b1 hq1 hkv1 sq4 skv4 d8 fp16"], ["fp16", "bf16"]),
        (["--budget-s", "1"], ["--budget-s", "10"]),
        (["--calls", "0"], ["--calls", "3"]),
    ],
)
def test_usage_errors(args, words):
    done = run(*args)
    assert done.returncode == 2 and done.stdout == ""
    assert all(word in done.stderr for word in words), done.stderr


def test_list_names_every_implementation():
    done = run("--list", "--no-probe")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(peers.adapters())


def test_without_anything_to_run_the_program_fails_with_the_reasons(tmp_path):
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is here")
    done = run("--quick", "--problems", "cpu-1024", "--impls", "fa3-bf16", "--out", tmp_path)
    assert done.returncode == 1 and "nothing was measured" in done.stderr and "fa3-bf16: " in done.stderr
    assert not list(tmp_path.iterdir())


def test_defaults_are_the_full_run():
    args = program.parse([])
    assert list(args.problems) == list(full_outcomes()) and args.calls >= 30
    assert args.impls == list(peers.adapters())
