"""What ``measure_peak`` counts, to the byte. One 512×512 float32 tensor is one MiB."""

from __future__ import annotations

import threading

import pytest
import torch

from dtr_fx.costs.measure import cpu_peaks, measure_peak

pytestmark = pytest.mark.little_effort

MiB = 2**20


def mib(n: int = 1) -> torch.Tensor:
    return torch.empty(n, 512, 512)


def test_nothing():
    assert measure_peak(lambda: None) == 0


def test_one_tensor():
    assert measure_peak(mib, 3) == 3 * MiB


def test_live_together_and_one_after_the_other():
    def together():
        return mib(), mib(), mib()

    def in_turn():
        for _ in range(3):
            mib()

    assert measure_peak(together) == 3 * MiB
    assert measure_peak(in_turn) == MiB


def test_peak_is_in_the_middle():
    def fn():
        a, b = mib(2), mib(3)
        del a
        c = mib()
        return b, c

    assert measure_peak(fn) == 5 * MiB


def test_odd_sizes_are_exact():
    assert measure_peak(torch.empty, 1_000_003, dtype=torch.uint8) == 1_000_003


def test_temporaries_inside_a_kernel():
    x = torch.zeros(512, 512)
    # The result is one number; median sorts a copy of its input.
    assert measure_peak(x.median) >= MiB


def test_views_and_in_place_cost_nothing():
    x = torch.zeros(512, 512)
    assert measure_peak(lambda: x.t().unsqueeze(0).relu_()) == 0


def test_backward_is_seen():
    x = torch.ones(512, 512, requires_grad=True)

    class Big(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, grad):
            mib(7)
            return grad.expand(512, 512)

    peak = measure_peak(lambda: Big.apply(x).backward())
    assert 7 * MiB <= peak < 8 * MiB


def test_gradient_and_saved_activation():
    x = torch.ones(512, 512, requires_grad=True)

    def step():
        # exp saves its result (1), its gradient is made while that is held (2), and then becomes x.grad.
        x.exp().backward(torch.ones(()).expand(512, 512))

    assert measure_peak(step) == pytest.approx(2 * MiB, abs=64)


def test_freeing_what_was_there_before_does_not_lower_the_figure_on_cpu():
    held = [mib(4)]

    def fn():
        held.clear()
        return mib()

    assert measure_peak(fn) == MiB


def test_a_stale_size_is_not_believed():
    """A block's size in an earlier measurement says nothing about what its address holds later."""
    held = []
    measure_peak(lambda: held.append(mib(8)))
    held.clear()
    held.extend(mib(8) for _ in range(8))

    def fn():
        held.clear()
        return mib()

    assert measure_peak(fn) == MiB


def test_measurements_do_not_add_up():
    held = []
    for _ in range(3):
        assert measure_peak(lambda: held.append(mib())) == MiB


def test_several_calls_under_one_profile():
    made = []

    def calls():
        for n in (1, 4, 2):
            made.append(mib(10).shape)  # between the calls: not counted
            yield lambda n=n: mib(n)
        yield lambda: None

    assert cpu_peaks(calls()) == [MiB, 4 * MiB, 2 * MiB, 0]
    assert len(made) == 3


def test_garbage_of_earlier_work_is_collected_first():
    cycle: list = [mib()]
    cycle.append(cycle)
    del cycle
    assert measure_peak(mib) == MiB


def test_arguments_are_passed():
    seen = {}
    measure_peak(lambda *args, **kwargs: seen.update(args=args, kwargs=kwargs), 1, 2, key=3)
    assert seen == {"args": (1, 2), "kwargs": {"key": 3}}


def test_errors_pass_through_and_leave_no_profiler_behind():
    def fails():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        measure_peak(fails)
    assert measure_peak(mib) == MiB


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="meta"):
        measure_peak(mib, device="meta")
    with pytest.raises(ValueError, match="'meta'"):
        measure_peak(lambda x: x, torch.empty(1, device="meta"))


def test_works_in_a_second_thread():
    result = []
    thread = threading.Thread(target=lambda: result.append(measure_peak(mib)))
    thread.start()
    thread.join()
    assert result == [MiB]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda():
    def fn(device):
        a = torch.empty(2, 512, 512, device=device)
        b = torch.empty(3, 512, 512, device=device)
        del a
        return b

    assert measure_peak(fn, "cuda", device="cuda") == 5 * MiB
    x = torch.ones(512, 512, device="cuda", requires_grad=True)
    assert measure_peak(lambda x: (2 * x).sum().backward(), x) >= 2 * MiB
