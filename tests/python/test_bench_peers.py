# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py without a GPU: order of turns, numbers of calls, time budget, errors, rows, and what
is said when something cannot run."""

import importlib.util
import sys
import types

import numpy as np
import pytest
from compare_dumps import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import peers  # noqa: E402
import problems  # noqa: E402
import schema  # noqa: E402
from peers import cuda, cudnn_fp8, inputs, measure, ours, probe, reference, session, verdict  # noqa: E402
from peers.cell import Cell  # noqa: E402

SMALL = problems.parse("b1 hq2 hkv1 sq40 skv50 d8 bf16")


# ------------------------------------------------------------------ adapters
def test_every_implementation_of_the_schema_has_one_adapter():
    assert sorted(peers.adapters()) == sorted((*schema.OURS, *schema.PEERS))


def test_an_implementation_that_cannot_run_says_why():
    """On a machine without torch or without a GPU nothing can; every reason is a text."""
    for impl, adapter in peers.adapters().items():
        reason = adapter.available(impl)
        assert isinstance(reason, str)
        if importlib.util.find_spec("torch") is None:
            assert "torch" in reason, (impl, reason)


def test_a_missing_package_is_named():
    assert peers.import_reason("json") == ""
    reason = peers.import_reason("json", "no_such_package_here")
    assert reason.startswith("import no_such_package_here: ModuleNotFoundError: ")


def test_our_recipes_are_those_of_the_library():
    """Each name of ours is the library's own, "-ours" apart."""
    for impl, recipe in ours._RECIPES.items():
        assert impl.removesuffix("-ours").replace("-", "_").upper() == recipe
        assert recipe in ours._capi().Recipe.__members__


@pytest.mark.parametrize("largest", [1e-6, 0.00437, 0.4374, 0.4375, 0.5, 1.0, 300.0])
def test_cudnn_outputs_are_scaled_into_the_upper_half_of_e4m3(largest):
    assert 112 <= largest * 2.0 ** cudnn_fp8.output_exponent(largest) < 224
    with pytest.raises(ValueError, match="largest"):
        cudnn_fp8.output_exponent(0.0)


# --------------------------------------------------------------------- order
def test_turns_go_there_and_back():
    assert measure.turns(3, 3) == [0, 1, 2, 2, 1, 0, 0, 1, 2]


def test_every_cell_has_one_turn_in_every_round():
    for cells in (1, 2, 7):
        order = measure.turns(cells, 5)
        rounds = [order[i : i + cells] for i in range(0, len(order), cells)]
        assert all(sorted(r) == list(range(cells)) for r in rounds)


def test_a_run_takes_turns_and_keeps_the_samples_apart():
    order = []

    def turn(cell, lead, timed):
        order.append((cell, lead, timed))
        return [float(ord(cell))] * timed, [1.0], [2.0]

    found = measure.run(["a", "b"], [0.1, 0.5], [30, 9], 3, turn)
    assert [name for name, _, _ in order] == list("abbaab")
    assert set(order) == {("a", 1, 10), ("b", 1, 3)}
    assert found[0].ms == [97.0] * 30 and found[1].ms == [98.0] * 9
    assert found[0].clock_mhz == [1.0] * 3 and found[1].power_w == [2.0] * 3


# --------------------------------------------------------------------- calls
@pytest.mark.parametrize("call_s", [1e-6, 3e-5, 1e-3, 0.1, 2.0])
@pytest.mark.parametrize("calls", [3, 6, 30, 60])
def test_a_cell_gets_at_least_its_calls(call_s, calls):
    assert 3 * measure.calls_a_turn(call_s, calls, 3) >= calls


def test_short_calls_get_turns_long_enough_for_the_sensors():
    assert measure.calls_a_turn(1e-3, 30, 3) * 1e-3 == pytest.approx(measure.TURN_S)
    assert measure.calls_a_turn(1e-3, 9, 3) * 1e-3 == pytest.approx(measure.EXTRA_TURN_S)
    assert measure.lead_calls(1e-3) * 1e-3 == pytest.approx(measure.LEAD_S)
    assert measure.lead_calls(0.2) == 1


def test_calls_fit_their_share_of_time():
    seconds, needed = [0.1, 0.2, 0.3], [True, True, True]

    def plan(share):
        return measure.affordable(seconds, needed, measure.Share(share, share), 30, 3)

    assert plan(1e9) == [30] * 3 and measure.Share(5, 7).less(2) == measure.Share(3, 5)
    for share in (4.0, 5.0, 10.0, 17.0):
        calls = plan(share)[0]
        assert plan(share) == [calls] * 3 and calls % 3 == 0
        more = [calls + 3] * 3
        assert measure.pass_s(seconds, plan(share), 3) <= share < measure.pass_s(seconds, more, 3)
    assert plan(3.0) == []  # one call and one ahead of it: 3.6 s


def test_cells_that_a_full_run_needs_get_the_time_first():
    def plan(share, wanted=30, most=0.0):
        given = measure.Share(share, most)
        return measure.affordable([0.1, 0.1], [True, False], given, wanted, 3)

    # 3.3 s for 30 calls and one ahead of each of 3 turns; 0.9 s for 6, 0.6 s for 3.
    assert plan(1e9) == [30, 9] and plan(4.3) == [30, 6] and plan(3.95) == [30, 3]
    assert plan(3.8) == [27, 3] and plan(1.25) == [3, 3] and plan(1.1) == []
    assert plan(1e9, wanted=6) == [6, 6]
    # Beyond its fair share, one call a round of what is not needed.
    assert plan(1.1, most=1e9) == [30, 3] and plan(1.1, most=3.8) == [27, 3]


def test_what_a_full_run_needs_of_an_implementation():
    def needed(impl, scope, grouping="none", also=()):
        return verdict.needs(Cell(impl, scope, lambda: None, grouping=grouping, also=also))

    assert needed("vc8", "kernel") and needed("vc8", "whole") and needed("fa3-bf16", "kernel")
    assert not needed("vc8", "prep") and not needed("vc8", "whole", "warm")
    assert not needed("fa4-bf16", "kernel", also=("whole",))


def test_shares_use_up_the_budget_in_proportion():
    costs, left, given = [100.0, 50.0, 10.0], 320.0, []
    for at in range(3):
        given.append(measure.shares(costs, left, at))
        left -= given[-1].fair_s
    assert [g.fair_s for g in given] == pytest.approx([200, 100, 20]) and left == pytest.approx(0)
    # At most so much that the later ones have their costs left.
    assert [g.most_s for g in given] == pytest.approx([260, 110, 20])
    assert measure.shares(costs, -5.0, 1).fair_s == 0


def test_the_full_run_gives_its_main_shape_the_time_it_needs():
    """30 calls of every needed cell of wan22-720p, 3 of the others and the calls that are not timed
    take about 75 s on an H200; 85 with a slower clock."""
    chosen = list(problems.select(list(verdict.FULL_PROBLEMS)).values())
    costs = [measure.cost(p) for p in chosen]
    assert measure.shares(costs, 500, 0).fair_s > 85


def test_no_mean_without_samples():
    assert measure.mean([]) is None and measure.mean([1.0, 3.0]) == 2


# --------------------------------------------------------------------- error
def test_sampled_rows_are_spread_and_hold_both_ends():
    assert reference.sample(3, 32) == [0, 1, 2]
    rows = reference.sample(75600, 32)
    assert rows[0] == 0 and rows[-1] == 75599 and len(set(rows)) == 32 and rows == sorted(rows)


def attention(q, k, v):
    """FP64 attention in NumPy, heads shared as in SMALL."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def test_the_error_is_relative_to_exact_attention():
    torch = pytest.importorskip("torch")
    p = problems.parse("b2 hq4 hkv2 sq40 skv50 d8 bf16 len41")
    given = inputs.make(p, seed=1, device="cpu")
    q, k, v = (x.double().numpy() for x in (given.q, given.k_valid, given.v_valid))
    exact = attention(q, k, v)
    measured = reference.Reference(given)
    assert measured.error(torch.from_numpy(exact)) < 1e-12
    assert measured.error(torch.from_numpy(exact * 1.25)) == pytest.approx(0.25)
    assert measured.error(torch.full(exact.shape, float("nan"))) == float("inf")


def test_layouts_differ_in_memory_alone():
    pytest.importorskip("torch")
    for layout, token_stride in (("", 8), (" nhd", 16), (" fused", 48)):
        given = inputs.make(problems.parse("b1 hq2 hkv2 sq40 skv40 d8 bf16" + layout), device="cpu")
        assert given.q.shape == (1, 2, 40, 8) and given.k.stride(2) == token_stride
        assert 0.9 < float(given.v.float().std()) < 1.1


# ------------------------------------------------------------------- session
class FakeAdapter:
    """Cells of plain Python: call lengths by scope; `fail` is raised instead."""

    def __init__(self, fail: Exception | None = None):
        self.fail = fail

    def cells(self, impl, problem, given):
        if self.fail:
            raise self.fail
        return [
            Cell(impl, "kernel", lambda: "codes", also=("whole",), decode=lambda codes: "o"),
            Cell(impl, "prep", lambda: None, before=lambda: None),
        ]


@pytest.fixture
def no_gpu(monkeypatch):
    """The session's arithmetic with a GPU that takes 0.1 s a call."""
    monkeypatch.setattr(inputs, "make", lambda problem, seed=0: None)
    monkeypatch.setattr(
        session, "Reference", lambda given: types.SimpleNamespace(error={"o": 0.012345678}.get)
    )
    monkeypatch.setattr(cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda, "release", lambda: None)
    monkeypatch.setattr(cuda, "one_call_s", lambda cell: (0.1, 1e-5))
    monkeypatch.setattr(
        cuda,
        "Timer",
        lambda sensors, host_s: lambda cell, lead, timed: ([100.0] * timed, [1800.0], [650.0]),
    )


def run_session(adapters, share_s=1e9):
    share = measure.Share(share_s, share_s)
    return session.run(SMALL, adapters, schema.make_row, None, wanted=30, rounds=3, share=share, seed=0)


def test_a_session_gives_rows_of_the_schema(no_gpu):
    found = run_session({"fa3-bf16": FakeAdapter()})
    assert [(r["scope"], r["grouping"]) for r in found.rows] == [
        ("kernel", "none"),
        ("whole", "none"),
        ("prep", "none"),
    ]
    kernel, whole, prep = found.rows
    assert kernel["ms_median"] == whole["ms_median"] == 100 and kernel["rel_error"] == 0.01235
    assert prep["rel_error"] is None and prep["clock_mhz"] == 1800 and prep["power_w"] == 650
    assert found.calls["fa3-bf16", "whole", "none"] == 30
    data = {
        "gpu": None,
        "driver": None,
        "date": schema.utc_now(),
        "commit": "unknown",
        "rows": found.rows,
    }
    schema.check(data, full=False)


def test_an_implementation_that_refuses_leaves_the_others(no_gpu):
    refusing = FakeAdapter(ValueError("head_dim 8\nallowed: 64"))
    found = run_session({"sageattention2": refusing, "fa3-bf16": FakeAdapter()})
    assert found.missing == {"sageattention2": "ValueError: head_dim 8"}
    assert {r["impl"] for r in found.rows} == {"fa3-bf16"}


def test_a_call_that_fails_leaves_the_other_calls(no_gpu):
    def fail():
        raise RuntimeError("no workspace")

    adapter = FakeAdapter()
    cells = adapter.cells
    adapter.cells = lambda *given: [*cells(*given), Cell("fa3-bf16", "whole", fail, grouping="warm")]
    found = run_session({"fa3-bf16": adapter})
    assert found.missing == {"fa3-bf16/whole/warm": "RuntimeError: no workspace"}
    assert [r["scope"] for r in found.rows] == ["kernel", "whole", "prep"]


def test_an_output_that_is_not_finite_gives_no_row(no_gpu, monkeypatch):
    nan = types.SimpleNamespace(error=lambda o: float("inf"))
    monkeypatch.setattr(session, "Reference", lambda given: nan)
    found = run_session({"fa3-bf16": FakeAdapter()})
    assert found.missing == {"fa3-bf16/kernel/none": "ValueError: the output is not finite"}
    assert [r["scope"] for r in found.rows] == ["prep"]


def test_a_share_too_small_measures_nothing_and_says_so(no_gpu):
    found = run_session({"fa3-bf16": FakeAdapter()}, share_s=0.5)
    assert found.rows == [] and found.missing["fa3-bf16"].startswith("time budget: ")


def test_a_fault_of_the_gpu_ends_the_session(no_gpu, monkeypatch):
    def fault():
        raise RuntimeError("an illegal memory access was encountered\nmore")

    monkeypatch.setattr(cuda, "synchronize", fault)
    with pytest.raises(session.DeviceLost, match="illegal memory access"):
        run_session({"fa3-bf16": FakeAdapter()})


# --------------------------------------------------------------------- probe
def test_a_probe_that_crashes_or_hangs_is_a_reason(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys, time\n"
        "impl = sys.argv[2]\n"
        "if impl == 'crash': os.abort()\n"
        "if impl == 'hang': time.sleep(60)\n"
        "if impl == 'refuse': print('no such GPU'); sys.exit(1)\n"
    )
    reasons = probe.run_all(["fine", "crash", "refuse", "hang"], str(script), limit_s=3)
    assert set(reasons) == {"crash", "refuse", "hang"}
    assert (
        reasons["refuse"] == "no such GPU" and "code -6" in reasons["crash"] and "3 s" in reasons["hang"]
    )


# ---------------------------------------------------------- ours, on the CPU's library
def test_our_calls_work_through_the_abi():
    """The same descriptors as on a GPU, on the CPU backend: errors in range, kernel rows from a
    workspace of their own, groupings that form an order, keep it up and forget it."""
    pytest.importorskip("torch")
    capi = ours._capi()
    try:
        capi.version()
    except ImportError as e:
        pytest.skip(str(e))
    p = problems.parse("b1 hq2 hkv2 sq300 skv700 d64 bf16 len650")
    given = inputs.make(p, device="cpu")
    exact = reference.Reference(given)
    for impl in ("vc8", "sage2-ours"):
        cells = ours.cells(impl, p, given)
        names = [c.name.split("/", 1)[1] for c in cells]
        grouped = ["whole/warm", "prep/warm", "whole/cold", "prep/cold"] if impl == "vc8" else []
        assert names == ["kernel/none", "whole/none", "prep/none", *grouped]
        for cell in cells * 2:
            if cell.before:
                cell.before()
            out = cell.call()
            assert (out is None) == (cell.scope == "prep")
            assert out is None or exact.error(out) < 0.1
